#pragma once

#include <filesystem>

namespace megatron::launch {

// A folder in the memory of this host (/dev/shm) that outlives the ranks of a job, for their local
// checkpoints. The destructor removes it; that of a killed program is removed by the next one that
// makes a folder.
class MemoryFolder {
 public:
  // Throws IoError.
  MemoryFolder();
  ~MemoryFolder();
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int lock_ = -1;  // its holder lives
};

}  // namespace megatron::launch
