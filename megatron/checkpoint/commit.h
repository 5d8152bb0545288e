#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "megatron/checkpoint/directory.h"

namespace megatron {

// A checkpoint that is being written, in a directory beside the one that it will have; removed
// unless it is committed.
class UnfinishedCheckpoint {
 public:
  // Throws IoError, also when something of another format has the name.
  UnfinishedCheckpoint(const std::filesystem::path& directory, const std::filesystem::path& name,
                       CheckpointFormat format);
  ~UnfinishedCheckpoint();
  UnfinishedCheckpoint(const UnfinishedCheckpoint&) = delete;
  UnfinishedCheckpoint& operator=(const UnfinishedCheckpoint&) = delete;

  // Where its files go.
  const std::filesystem::path& path() const { return path_; }
  // Syncs, renames <directory>/<name> into place, exchanging it with a checkpoint that is already
  // there, so that a complete one has the name at every moment; then `tracker` becomes the text of
  // the tracker file: until that, the checkpoint before is the latest. Throws IoError.
  void commit(const std::string& tracker);

 private:
  void put_in_place();
  void rename_plainly(bool replaces);

  const std::filesystem::path directory_;
  const std::filesystem::path final_;
  std::filesystem::path path_;
};

// Makes <directory>/<name> a checkpoint: `write` puts its files into the path of an
// UnfinishedCheckpoint, which is then committed. Whatever `write` throws leaves everything as it
// was.
void commit_checkpoint(const std::filesystem::path& directory, const std::filesystem::path& name,
                       CheckpointFormat format, const std::string& tracker,
                       const std::function<void(const std::filesystem::path&)>& write);

}  // namespace megatron
