#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron convert-megatron-checkpoint`: converts the file of a GPT or BERT of Megatron-LM, or a
// zip archive with one, to a transformers model in the same folder. It has the command line of
// transformers' convert_megatron_gpt2_checkpoint.py and convert_megatron_bert_checkpoint.py.
int convert_megatron_checkpoint(std::span<const std::string> words);

}  // namespace megatron::cli
