#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "megatron/checkpoint/directory.h"

namespace megatron {

// A checkpoint that is being written, in a temporary directory beside its final one; removed unless
// it is committed.
class UnfinishedCheckpoint {
 public:
  // Throws IoError, also if the name belongs to a checkpoint of another format.
  UnfinishedCheckpoint(const std::filesystem::path& directory, const std::filesystem::path& name,
                       CheckpointFormat format);
  ~UnfinishedCheckpoint();
  UnfinishedCheckpoint(const UnfinishedCheckpoint&) = delete;
  UnfinishedCheckpoint& operator=(const UnfinishedCheckpoint&) = delete;

  // The temporary directory for its files.
  const std::filesystem::path& path() const { return path_; }
  // Syncs, and renames <directory>/<name> into place, exchanging it with an existing checkpoint, so
  // that the name always has a complete one. Then replaces the tracker file by `tracker`; until
  // that the previous checkpoint is the latest. Throws IoError.
  void commit(const std::string& tracker);

 private:
  void put_in_place();
  void rename_plainly(bool replaces);

  const std::filesystem::path directory_;
  const std::filesystem::path final_;
  std::filesystem::path path_;
};

// Writes the checkpoint <directory>/<name>: `write` puts its files into the path of an
// UnfinishedCheckpoint, which is then committed. An exception of `write` leaves everything
// unchanged.
void commit_checkpoint(const std::filesystem::path& directory, const std::filesystem::path& name,
                       CheckpointFormat format, const std::string& tracker,
                       const std::function<void(const std::filesystem::path&)>& write);

}  // namespace megatron
