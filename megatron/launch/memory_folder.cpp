#include "megatron/launch/memory_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>

#include "megatron/core/error.h"

namespace megatron::launch {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMemory = "/dev/shm";
constexpr std::string_view kPrefix = "megatron-local-";
constexpr const char* kLock = ".lock";

// The locked file of a folder; -1 if another program holds it or it cannot be opened.
int locked_file_in(const fs::path& folder, int flags) {
  const int descriptor = ::open((folder / kLock).c_str(), O_RDWR | O_CLOEXEC | flags, 0600);
  if (descriptor >= 0 && ::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    ::close(descriptor);
    return -1;
  }
  return descriptor;
}

void remove_abandoned_folders() {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(kMemory, ignored)) {
    if (!entry.path().filename().string().starts_with(kPrefix)) continue;
    const int lock = locked_file_in(entry.path(), 0);
    if (lock < 0) continue;
    fs::remove_all(entry.path(), ignored);
    ::close(lock);
  }
}

}  // namespace

MemoryFolder::MemoryFolder() {
  remove_abandoned_folders();
  std::string path = fmt::format("{}/{}{}-XXXXXX", kMemory, kPrefix, ::getpid());
  if (::mkdtemp(path.data()) == nullptr) {
    throw IoError(fmt::format("{}: cannot be created: {}; give --non-persistent-local-ckpt-dir",
                              path, std::strerror(errno)));
  }
  path_ = path;
  lock_ = locked_file_in(path_, O_CREAT);
}

MemoryFolder::~MemoryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace megatron::launch
