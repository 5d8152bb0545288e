#pragma once

#include <filesystem>

namespace megatron {

// Reserves a directory of --save for one run by a lock on <directory>/.lock. The system releases it
// when the process ends in any way, so a lock is never stale. The file names the holder.
class DirectoryLock {
 public:
  // Throws ConfigError, which names the holder, its host and its start, if another run has the
  // lock. On a file system without locks, warns and continues.
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
