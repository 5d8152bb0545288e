#pragma once

#include <string>
#include <utility>
#include <vector>

#include "annex/deepspeed/checkpoint/shards.h"
#include "annex/deepspeed/checkpoint/state.h"
#include "megatron/checkpoint/contents.h"

// Checkpoints that DeepSpeed saved of a model of transformers: the parameters have the names and
// layouts of that model, which its config.json describes.
namespace megatron {

// Are none of these the names of a parameter of Megatron-LM?
bool are_hf_names(const std::vector<std::string>& parameters);

// Adds the settings, the weights and the state of the optimizer. Throws FormatError if there is no
// config.json, or if it does not fit the weights.
void read_hf_module(const std::vector<std::pair<std::string, DeepSpeedShard>>& weights,
                    const DeepSpeedState& state, CheckpointContents& contents);

}  // namespace megatron
