#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/interchange/deepspeed/shards.h"
#include "megatron/interchange/deepspeed/state.h"

// Checkpoints that DeepSpeed saved of a model of transformers: the parameters have the names and
// layouts of that model, which its config.json describes.
namespace megatron {

// Are none of these the names of a parameter of Megatron-LM?
bool are_hf_names(const std::vector<std::string>& parameters);

// The folder of the config.json that belongs to a checkpoint: its own, or the one above, where
// transformers' Trainer saves it; none if there is none.
std::optional<std::filesystem::path> hf_config_folder(const std::filesystem::path& checkpoint);

// Adds the settings, the weights and the state of the optimizer. Throws FormatError if there is no
// config.json, or if it does not fit the weights.
void read_hf_module(const std::vector<std::pair<std::string, DeepSpeedShard>>& weights,
                    const DeepSpeedState& state, CheckpointContents& contents);

}  // namespace megatron
