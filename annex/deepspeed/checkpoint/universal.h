#pragma once

#include <filesystem>

#include "megatron/checkpoint/contents.h"
#include "megatron/formats/torch_file.h"
#include "megatron/interchange/parts.h"

namespace megatron {

// True for a checkpoint made by DeepSpeed's ds_to_universal, with zero/<parameter>/fp32.pt.
bool is_universal_checkpoint(const std::filesystem::path& directory);

// Adds the weights, and the optimizer's state with Parts::kAll, of a universal checkpoint to
// contents that have the settings. `model_states` is the file of the first rank. Throws
// FormatError; Unsupported for parameters that no model of this program has.
void read_universal(const std::filesystem::path& directory, const TorchFile& model_states,
                    Parts parts, CheckpointContents& contents);

}  // namespace megatron
