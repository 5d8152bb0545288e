#pragma once

#include <cstdint>
#include <filesystem>

#include "megatron/checkpoint/contents.h"
#include "megatron/core/arg_map.h"
#include "megatron/formats/python_value.h"

// What Megatron-LM stores beside the tensors, in files of any format.
namespace megatron {

// Is it the directory of weights without an iteration?
bool is_release(const std::filesystem::path& directory);

// The number of iterations done; 0 if it is not there.
int64_t iteration_in(PyValue root);

// Throws Unsupported for the settings of a model with experts.
void refuse_experts(const ArgMap& args, const std::filesystem::path& directory);

// Reads iteration, progress, the schedule of learning rates and the seed into the contents, which
// have args and is_release. Compat: of a release, Megatron-LM takes the weights alone.
void read_common_state(PyValue root, CheckpointContents& contents);

}  // namespace megatron
