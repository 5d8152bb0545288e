#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron config`: Accelerate's questionnaire and its files.
int config(std::span<const std::string> words);

}  // namespace megatron::cli
