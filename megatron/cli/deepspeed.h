#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron deepspeed`: the command line of DeepSpeed's launcher.
int deepspeed(std::span<const std::string> words);

}  // namespace megatron::cli
