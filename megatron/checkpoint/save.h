#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "megatron/checkpoint/commit.h"
#include "megatron/checkpoint/contents.h"
#include "megatron/checkpoint/manifest.h"
#include "megatron/checkpoint/state.h"
#include "megatron/comm/group.h"

namespace megatron {

struct SaveOptions {
  int64_t keep_last = 0;              // delete all but the newest; 0: delete none
  int64_t retain_interval = 0;        // multiples of it are never deleted; 0: no such
  std::vector<int64_t> foreign = {};  // iterations that other runs wrote; never deleted
};

// Saves the state, of which every rank of `world` has a part, as <directory>/iter_<iteration>, then
// makes it the latest. The files are written beside it, synced, and appear together by one rename;
// until the tracker file is replaced, the checkpoint before is the latest. Tensors are written from
// where they are: nothing of the model is copied. Tensors of one name may be several chunks;
// together, over all ranks, they must be the whole once. Counters, scalars and args are those of
// rank 0. Every rank writes files of its own; `directory` is one that all ranks see.
//
// Throws IoError, with the file, the reason and the remedy, when anything cannot be written: then
// nothing of the new checkpoint is left, and those before are as they were. Old checkpoints are
// deleted at the end; a failure of that is a warning.
void save_checkpoint(const std::filesystem::path& directory, const CheckpointState& state,
                     const SaveOptions& options = {}, const comm::Group& world = {});
// The same for contents from anywhere, a piece in memory at a time; every piece is a chunk.
void save_checkpoint(const std::filesystem::path& directory, const CheckpointContents& contents,
                     const SaveOptions& options = {}, const comm::Group& world = {});

// The same in three steps, of which the second needs no other rank and may be done by another
// thread. What is not committed is removed.
class CheckpointWriting {
 public:
  // Every rank calls it. Copies of `world` are used until the end.
  CheckpointWriting(const std::filesystem::path& directory, CheckpointContents contents,
                    const SaveOptions& options, const comm::Group& world);
  ~CheckpointWriting();
  CheckpointWriting(const CheckpointWriting&) = delete;
  CheckpointWriting& operator=(const CheckpointWriting&) = delete;

  int64_t iteration() const { return contents_.iteration; }
  // Writes this rank's files.
  void write();
  // Every rank calls it when its files are written.
  void commit();

 private:
  template <class Step>
  void run(const Step& step) const;

  const std::filesystem::path directory_;
  const CheckpointContents contents_;
  const SaveOptions options_;
  const comm::Group world_;
  std::unique_ptr<UnfinishedCheckpoint> unfinished_;  // on rank 0
  std::filesystem::path path_;                        // of the files
  Manifest manifest_;
};

}  // namespace megatron
