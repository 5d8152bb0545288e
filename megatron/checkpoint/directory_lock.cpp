#include "megatron/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/host_name.h"
#include "megatron/core/log.h"

namespace megatron {
namespace {

std::string this_process() {
  return fmt::format("process {} on {} since {:%Y-%m-%d %H:%M:%S}", ::getpid(), host_name(),
                     fmt::localtime(std::time(nullptr)));
}

std::string holder_in(int descriptor) {
  std::array<char, 512> text{};
  const ssize_t size = ::pread(descriptor, text.data(), text.size() - 1, 0);
  return size > 0 ? std::string(text.data(), static_cast<size_t>(size)) : "a run that just started";
}

}  // namespace

DirectoryLock::DirectoryLock(const std::filesystem::path& directory) : path_(directory / ".lock") {
  while (true) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) {
      throw IoError(fmt::format("{}: cannot create: {}", path_.string(), std::strerror(errno)));
    }
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      const std::string holder = holder_in(descriptor_);
      ::close(std::exchange(descriptor_, -1));
      if (reason != EWOULDBLOCK) {
        warn(
            fmt::format("{}: this file system has no locks ({}); take care that no other run "
                        "saves there",
                        path_.string(), std::strerror(reason)));
        return;
      }
      throw ConfigError(
          fmt::format("--save {}: another run saves there, {}; end it or choose another directory",
                      directory.string(), holder));
    }
    if (is_still_named(descriptor_, path_)) break;  // a run that ended removes its file
    ::close(descriptor_);
  }
  const std::string holder = this_process();
  const bool is_written =
      ::ftruncate(descriptor_, 0) == 0 &&
      ::pwrite(descriptor_, holder.data(), holder.size(), 0) == static_cast<ssize_t>(holder.size());
  if (!is_written) debug("the lock of --save does not name its holder");
}

DirectoryLock::~DirectoryLock() {
  if (descriptor_ < 0) return;
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace megatron
