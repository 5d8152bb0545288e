#include "megatron/kernels/choice_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/log.h"
#include "megatron/device/random.h"

namespace megatron::kernels {
namespace {

// Other processes wait while one adds to the file. On a file system without locks an answer may be
// lost; it is then measured again. Throws IoError if another process, which may have been stopped,
// holds the lock longer than `patience`.
class FileLock {
 public:
  FileLock(const std::filesystem::path& path, std::chrono::milliseconds patience)
      : descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) return;
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      if (std::chrono::steady_clock::now() >= deadline) {
        ::close(descriptor_);
        throw IoError(fmt::format("{}: another process has held this lock for {} ms", path.string(),
                                  patience.count()));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ~FileLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

std::string checksum_of(std::string_view text) { return fmt::format("{:016x}", hash_of(text)); }

std::string line_of(const std::string& question, const std::string& answer) {
  const std::string body = question + '\t' + answer;
  return checksum_of(body) + '\t' + body + '\n';
}

using Answer = std::pair<std::string, std::string>;

// Nothing if the line is damaged.
std::optional<Answer> parsed(std::string_view line) {
  const size_t question = line.find('\t');
  if (question == line.npos) return std::nullopt;
  const std::string_view body = line.substr(question + 1);
  const size_t answer = body.find('\t');
  if (answer == body.npos || checksum_of(body) != line.substr(0, question)) return std::nullopt;
  return Answer(body.substr(0, answer), body.substr(answer + 1));
}

}  // namespace

ChoiceFile::ChoiceFile(std::filesystem::path path, std::chrono::milliseconds patience)
    : path_(std::move(path)), patience_(patience) {
  try {
    merge();
  } catch (const IoError& error) {
    warn(error.what());
    has_warned_ = true;
  }
}

std::optional<std::string> ChoiceFile::find(const std::string& question) const {
  const std::lock_guard lock(mutex_);
  const auto found = answers_.find(question);
  if (found == answers_.end()) return std::nullopt;
  return found->second;
}

std::string ChoiceFile::remember(const std::string& question, const std::string& answer) {
  const std::lock_guard lock(mutex_);
  try {
    std::error_code ignored;  // the write below reports the reason
    std::filesystem::create_directories(path_.parent_path(), ignored);
    const FileLock others_wait(path_.string() + ".lock", patience_);
    merge();
    const auto [place, is_new] = answers_.try_emplace(question, answer);
    if (is_damaged_) {
      rewrite();
    } else if (is_new) {
      append(question, answer);
    }
    return place->second;
  } catch (const IoError& error) {
    if (!std::exchange(has_warned_, true)) {
      warn(fmt::format("{}; this run's measurements are not kept", error.what()));
    }
  }
  return answers_.try_emplace(question, answer).first->second;
}

void ChoiceFile::merge() {
  is_damaged_ = false;
  std::error_code ignored;  // reading reports the reason
  if (!std::filesystem::exists(path_, ignored) && !ignored) return;
  const std::string text = read_text(path_);
  std::string_view rest = text;
  int num_damaged = 0;
  while (!rest.empty()) {
    const size_t length = rest.find('\n');
    auto answer = parsed(rest.substr(0, length));
    if (answer) {
      answers_.insert(std::move(*answer));
    } else {
      ++num_damaged;
    }
    rest.remove_prefix(length == rest.npos ? rest.size() : length + 1);
  }
  is_damaged_ = num_damaged > 0 || (!text.empty() && text.back() != '\n');
  if (num_damaged > 0) {
    warn(fmt::format("{}: {} damaged lines are ignored", path_.string(), num_damaged));
  }
}

void ChoiceFile::append(const std::string& question, const std::string& answer) const {
  const std::string line = line_of(question, answer);
  const int file = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) {
    throw IoError(fmt::format("{}: cannot create: {}", path_.string(), std::strerror(errno)));
  }
  const ssize_t written = ::write(file, line.data(), line.size());
  const int error = errno;
  ::close(file);
  if (written != static_cast<ssize_t>(line.size())) {
    throw IoError(fmt::format("{}: cannot add a line: {}", path_.string(),
                              written < 0 ? std::strerror(error) : "the disk is full"));
  }
}

void ChoiceFile::rewrite() const {
  std::string text;
  for (const auto& [question, answer] : answers_) text += line_of(question, answer);
  write_text_atomically(path_, text);
}

std::filesystem::path cache_directory() {
  const auto absolute = [](const char* variable) {
    const char* value = std::getenv(variable);
    const std::filesystem::path path = value == nullptr ? "" : value;
    return path.is_absolute() ? path : std::filesystem::path();
  };
  if (const auto cache = absolute("XDG_CACHE_HOME"); !cache.empty()) return cache / "megatron";
  if (const auto home = absolute("HOME"); !home.empty()) return home / ".cache" / "megatron";
  return {};
}

}  // namespace megatron::kernels
