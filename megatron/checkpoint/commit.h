#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "megatron/checkpoint/directory.h"
#include "megatron/core/folder.h"

namespace megatron {

// A checkpoint that is being written, in a temporary directory beside its final one; removed unless
// it is committed.
class UnfinishedCheckpoint {
 public:
  // Throws IoError, also if the name belongs to a checkpoint of another format.
  UnfinishedCheckpoint(const std::filesystem::path& directory, const std::filesystem::path& name,
                       CheckpointFormat format);

  // The temporary directory for its files.
  const std::filesystem::path& path() const { return folder_.path(); }
  // Moves the checkpoint to <directory>/<name>, in exchange for an existing one, so that the name
  // always refers to a complete checkpoint. Then replaces the tracker file by `tracker`; until that
  // the previous checkpoint is the latest. If there is none, the new one is the latest as soon as
  // it is moved: kNextTrackerFile names it. Throws IoError.
  void commit(const std::string& tracker);

 private:
  const std::filesystem::path directory_;
  UnfinishedFolder folder_;
};

// Writes the checkpoint <directory>/<name>: `write` puts its files into the path of an
// UnfinishedCheckpoint, which is then committed. An exception of `write` leaves everything
// unchanged.
void commit_checkpoint(const std::filesystem::path& directory, const std::filesystem::path& name,
                       CheckpointFormat format, const std::string& tracker,
                       const std::function<void(const std::filesystem::path&)>& write);

}  // namespace megatron
