#pragma once

#include <filesystem>

#include "megatron/checkpoint/contents.h"
#include "megatron/checkpoint/manifest.h"

namespace megatron {

// Opens a checkpoint of the native format for reading: the directory of one iteration
// (find_checkpoint). Opening reads only the manifest; tensors are read on demand, and every chunk
// is checked against its checksum. Throws IoError, FormatError, Unsupported; so does reading a
// piece, with file, tensor and chunk of damaged bytes.
CheckpointContents open_checkpoint(const std::filesystem::path& directory);

// Opens and loads a checkpoint.
void load_checkpoint(const std::filesystem::path& iteration_directory, CheckpointState& state,
                     const LoadOptions& options = {});

}  // namespace megatron
