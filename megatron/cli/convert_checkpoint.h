#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron convert-checkpoint`: a checkpoint of any format and layout as one of another. Takes the
// options of Megatron-LM's tools/checkpoint and of transformers' Megatron script.
int convert_checkpoint(std::span<const std::string> words);

}  // namespace megatron::cli
