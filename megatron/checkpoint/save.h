#pragma once

#include <cstdint>
#include <filesystem>

#include "megatron/checkpoint/contents.h"
#include "megatron/checkpoint/state.h"

namespace megatron {

struct SaveOptions {
  int64_t keep_last = 0;        // delete all but the newest; 0: delete none
  int64_t retain_interval = 0;  // multiples of it are never deleted; 0: no such
};

// Saves the state as <directory>/iter_<iteration>, then makes it the latest. The files are written
// beside it, synced, and appear together by one rename; until the tracker file is replaced, the
// checkpoint before is the latest. Tensors are written from where they are: nothing of the model is
// copied. Tensors of one name may be several chunks; together they must be the whole.
//
// Throws IoError, with the file, the reason and the remedy, when anything cannot be written: then
// nothing of the new checkpoint is left, and those before are as they were. Old checkpoints are
// deleted at the end; a failure of that is a warning.
void save_checkpoint(const std::filesystem::path& directory, const CheckpointState& state,
                     const SaveOptions& options = {});
// The same for contents from anywhere, a piece in memory at a time; every piece is a chunk.
void save_checkpoint(const std::filesystem::path& directory, const CheckpointContents& contents,
                     const SaveOptions& options = {});

}  // namespace megatron
