#include "megatron/core/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/core/log.h"

namespace megatron {

AppendFile::AppendFile(std::filesystem::path path, std::string flag)
    : path_(std::move(path)), flag_(std::move(flag)) {
  const std::filesystem::path folder = path_.parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  const std::string_view attempt = error ? "create the directory" : "write";
  if (!error && !open()) error = {errno, std::generic_category()};
  if (!error) return;
  throw IoError(fmt::format("{} {}: cannot {}: {}; choose a place in which this user may write",
                            flag_, path_.string(), attempt, error.message()));
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool AppendFile::open() {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  return descriptor_ >= 0;
}

void AppendFile::append(std::string_view record) {
  if (write(record)) {
    if (lost_ > 0) {
      warn(fmt::format("{} {}: writing works again; {} records are missing", flag_, path_.string(),
                       std::exchange(lost_, 0)));
    }
    return;
  }
  const int reason = errno;
  if (lost_++ > 0) return;
  warn(fmt::format("{} {}: cannot write: {}; the run continues, and later records are tried again",
                   flag_, path_.string(), std::strerror(reason)));
}

// On failure errno has the reason, the file has no part of the record, and the file is closed: a
// descriptor of a network file system may stay bad.
bool AppendFile::write(std::string_view record) {
  if (descriptor_ < 0 && !open()) return false;
  size_t written = 0;
  while (written < record.size()) {
    const ssize_t count = ::write(descriptor_, record.data() + written, record.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    written += static_cast<size_t>(count);
  }
  if (written == record.size()) return true;
  const int reason = errno;
  struct stat status {};
  if (written > 0 && ::fstat(descriptor_, &status) == 0) {
    const int ignored = ::ftruncate(descriptor_, status.st_size - static_cast<off_t>(written));
    static_cast<void>(ignored);
  }
  ::close(std::exchange(descriptor_, -1));
  errno = reason;
  return false;
}

}  // namespace megatron
