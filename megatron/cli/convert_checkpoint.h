#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron convert-checkpoint`: converts a checkpoint between all formats and layouts. Takes the
// options of Megatron-LM's tools/checkpoint and of transformers' Megatron script.
int convert_checkpoint(std::span<const std::string> words);

}  // namespace megatron::cli
