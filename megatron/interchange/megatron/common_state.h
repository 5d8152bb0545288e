#pragma once

#include <cstdint>
#include <filesystem>

#include "megatron/checkpoint/contents.h"
#include "megatron/core/arg_map.h"
#include "megatron/formats/python_value.h"

// Megatron-LM's state beside the tensors, in files of any format.
namespace megatron {

// True for "release", the directory of weights without an iteration.
bool is_release(const std::filesystem::path& directory);

// The number of completed iterations; 0 if it is missing.
int64_t iteration_in(PyValue root);

// Reads iteration, progress, the schedule of learning rates and the seed into the contents, which
// have args and is_release. Compat: Megatron-LM loads only the weights of a release.
void read_common_state(PyValue root, CheckpointContents& contents);

}  // namespace megatron
