#pragma once

#include <filesystem>

#include "megatron/checkpoint/contents.h"
#include "megatron/checkpoint/manifest.h"

namespace megatron {

// A checkpoint of the native format, open for reading: the directory of one iteration
// (find_checkpoint). Opening reads the manifest alone; tensors are read on demand, each chunk
// checked against its checksum. Throws IoError, FormatError, Unsupported; so does reading a piece,
// naming file, tensor and chunk of damaged bytes.
CheckpointContents open_checkpoint(const std::filesystem::path& directory);

// Opens and loads one.
void load_checkpoint(const std::filesystem::path& iteration_directory, CheckpointState& state,
                     const LoadOptions& options = {});

}  // namespace megatron
