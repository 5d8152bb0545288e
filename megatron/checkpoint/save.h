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
  int64_t retain_interval = 0;        // never delete multiples of it; 0: none
  std::vector<int64_t> foreign = {};  // iterations of other runs; never deleted
};

// Saves the state, whose parts are spread over the ranks of `world`, as
// <directory>/iter_<iteration>, and makes it the latest. The files are written beside it, synced,
// and appear together by one rename; until the tracker file is replaced, the previous checkpoint is
// the latest. Tensors are written from their own memory; the model is not copied. A tensor may be
// several chunks with one name; together, over all ranks, they must cover it exactly once.
// Counters, scalars and args are those of rank 0. Every rank writes its own files; all ranks must
// see `directory`.
//
// Throws IoError, with the file, the reason and the remedy, if anything cannot be written: then
// nothing of the new checkpoint remains, and the old ones are unchanged. Old checkpoints are
// deleted at the end; a failure of that is a warning.
void save_checkpoint(const std::filesystem::path& directory, const CheckpointState& state,
                     const SaveOptions& options = {}, const comm::Group& world = {});
// The same for contents from any source, with one piece in memory at a time; every piece is a
// chunk.
void save_checkpoint(const std::filesystem::path& directory, const CheckpointContents& contents,
                     const SaveOptions& options = {}, const comm::Group& world = {});

// The same in three steps. The second needs no other rank, so another thread may do it. The
// destructor removes a checkpoint that is not committed.
class CheckpointWriting {
 public:
  // Every rank calls it. Uses copies of `world` until the end. Hashes that the contents have are
  // saved as they are: of this rank's parts.
  CheckpointWriting(const std::filesystem::path& directory, CheckpointContents contents,
                    const SaveOptions& options, const comm::Group& world);
  ~CheckpointWriting();
  CheckpointWriting(const CheckpointWriting&) = delete;
  CheckpointWriting& operator=(const CheckpointWriting&) = delete;

  int64_t iteration() const { return contents_.iteration; }
  // Writes this rank's files.
  void write();
  // Every rank calls it after write().
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
