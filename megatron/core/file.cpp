#include "megatron/core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/core/signal_cleanup.h"

namespace megatron {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr int64_t kWriteBackBytes = int64_t{4} << 20;

[[noreturn]] void fail(const std::filesystem::path& path, const char* what) {
  const int reason = errno;
  std::string hint;
  if (reason == ENOSPC || reason == EDQUOT) hint = "; free some space or choose another directory";
  if (reason == EFBIG) hint = "; raise the limit on the size of files (ulimit -f)";
  if (reason == ENOENT) hint = "; check the path";
  throw IoError(path.string() + ": cannot " + what + ": " + std::strerror(reason) + hint);
}

// Closes a descriptor on scope exit.
struct Closer {
  int descriptor;
  ~Closer() { ::close(descriptor); }
};

std::filesystem::path temporary_name(const std::filesystem::path& path, int number) {
  std::filesystem::path name = path;
  name += number == 1 ? ".tmp-megatron" : fmt::format(".tmp-megatron-{}", number);
  return name;
}

// Removes a temporary file whose writer was killed. False if it is in use, or is not ours to judge.
bool is_removed_as_dead(const std::filesystem::path& name) {
  const int descriptor = ::open(name.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return errno == ENOENT;
  const Closer closer{descriptor};
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return false;
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) return false;
  return !is_still_named(descriptor, name) || ::unlink(name.c_str()) == 0;
}

// Creates a file for one writer, and locks it where the file system has locks; the descriptor, or
// none if another writer has the name. On other errors -1 with errno.
std::optional<int> claim(const std::filesystem::path& name) {
  while (true) {
    const int descriptor = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor < 0 && errno != EEXIST) return -1;
    if (descriptor < 0) {
      if (!is_removed_as_dead(name)) return std::nullopt;
      continue;
    }
    // Before it was locked, another one may have taken it for dead.
    const bool is_taken = ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!is_taken && is_still_named(descriptor, name)) return descriptor;
    ::close(descriptor);
  }
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path, "open");
  const Closer closer{descriptor};
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail(path, "read the size of");
  if (S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    fail(path, "read");
  }
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) fail(path, "map into memory");
  data_ = static_cast<const std::byte*>(mapped);
  remember_mapping(bytes(), path_);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::string read_text(const std::filesystem::path& path) {
  const MappedFile file(path);
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

FileWriter::FileWriter(std::filesystem::path path) : path_(std::move(path)) {
  create();
  buffer_.reserve(kBufferBytes);
}

void FileWriter::create() {
  int number = 1;
  std::optional<int> claimed;
  for (; !claimed; ++number) claimed = claim(temporary_ = temporary_name(path_, number));
  if (*claimed < 0) {
    temporary_.clear();
    fail(path_, "create");
  }
  descriptor_ = *claimed;
  remember_unfinished(temporary_);
  while (::access(temporary_name(path_, number).c_str(), F_OK) == 0 &&
         is_removed_as_dead(temporary_name(path_, number))) {
    ++number;
  }
}

FileWriter::~FileWriter() {
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
    forget_unfinished(temporary_);
  }
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileWriter::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void FileWriter::write(std::string_view text) {
  bytes_written_ += static_cast<int64_t>(text.size());
  if (buffer_.size() + text.size() > kBufferBytes) flush();
  if (text.size() >= kBufferBytes) return write_through(text);  // too large to be worth copying
  buffer_.append(text);
}

void FileWriter::flush() {
  write_through(buffer_);
  buffer_.clear();
}

void FileWriter::write_through(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path_, "write");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
#if defined(SYNC_FILE_RANGE_WRITE)
  const int64_t waiting = bytes_written_ - bytes_on_the_way_;
  if (waiting < kWriteBackBytes) return;
  // Only a hint: fsync() reports errors.
  ::sync_file_range(descriptor_, bytes_on_the_way_, waiting, SYNC_FILE_RANGE_WRITE);
  bytes_on_the_way_ = bytes_written_;
#endif
}

void FileWriter::sync() {
  flush();
  if (::fsync(descriptor_) != 0) fail(path_, "sync");
  // Some file systems report a failed write at a close only; the lock stays with the other one.
  const int second = ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
  if (second < 0 || ::close(second) != 0) fail(path_, "close");
  is_synced_ = true;
}

void FileWriter::commit() {
  if (!is_synced_) sync();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "rename into place");
  forget_unfinished(std::exchange(temporary_, {}));
  ::close(std::exchange(descriptor_, -1));
}

void commit_together(FileWriter& first, FileWriter& second) {
  const std::filesystem::path directory = std::filesystem::absolute(first.path()).parent_path();
  first.sync();
  second.sync();
  if (::unlink(second.path().c_str()) == 0) {
    sync_directory(directory);
  } else if (errno != ENOENT) {
    fail(second.path(), "delete the old file");
  }
  first.commit();
  second.commit();
  sync_directory(directory);
}

void copy_whole_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  const MappedFile file(from);
  FileWriter writer(to);
  writer.write(file.bytes());
  writer.commit();
}

void write_text_atomically(const std::filesystem::path& path, std::string_view text) {
  FileWriter writer(path);
  writer.write(text);
  writer.commit();
}

void sync_directory(const std::filesystem::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail(directory, "open");
  const Closer closer{descriptor};
  // Some file systems keep names in order by themselves and refuse this with EINVAL.
  if (::fsync(descriptor) != 0 && errno != EINVAL) fail(directory, "sync");
}

bool is_still_named(int descriptor, const std::filesystem::path& path) {
  struct stat open {};
  struct stat named {};
  return ::fstat(descriptor, &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

}  // namespace megatron
