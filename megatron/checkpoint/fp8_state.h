#pragma once

#include <string_view>

#include "megatron/checkpoint/contents.h"

// The state of FP8 layers in checkpoints: scales, and the history that they come from
// (nn/fp8_layer.h). They are not weights: a model without FP8 ignores them, and one with FP8
// computes them in its first iteration if a checkpoint has none, or a history of another length.
namespace megatron {

bool is_fp8_state(std::string_view name);
// For formats of other systems.
void drop_fp8_state(CheckpointContents& contents);

}  // namespace megatron
