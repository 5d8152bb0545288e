#pragma once

#include <filesystem>

namespace megatron {

// Keeps a directory of --save for one run: a lock on <directory>/.lock, which the system gives back
// when the process ends in any way, so that no lock is ever stale. The file says who holds it.
class DirectoryLock {
 public:
  // Throws ConfigError that names the holder, its host and its start if another run has the lock.
  // Where the file system knows no locks, it warns and goes on.
  explicit DirectoryLock(const std::filesystem::path& directory);
  // Removes the file.
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace megatron
