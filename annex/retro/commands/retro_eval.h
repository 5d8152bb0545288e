#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron retro-eval --pred FILE --gold FILE`: compares answers that a model wrote, one a line,
// with those of a data set. Prints Megatron-LM's lines.
int retro_eval(std::span<const std::string> words);

}  // namespace megatron::cli
