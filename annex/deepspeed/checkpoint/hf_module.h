#pragma once

#include <string>
#include <utility>
#include <vector>

#include "annex/deepspeed/checkpoint/shards.h"
#include "annex/deepspeed/checkpoint/state.h"
#include "megatron/checkpoint/contents.h"

// DeepSpeed checkpoints of transformers models: parameters have the names and layouts of that
// model, which its config.json describes.
namespace megatron {

// True if none of the names is that of a parameter of Megatron-LM.
bool are_hf_names(const std::vector<std::string>& parameters);

// Adds the settings, the weights and the state of the optimizer. Throws FormatError if there is no
// config.json, or if it does not fit the weights.
void read_hf_module(const std::vector<std::pair<std::string, DeepSpeedShard>>& weights,
                    const DeepSpeedState& state, CheckpointContents& contents);

}  // namespace megatron
