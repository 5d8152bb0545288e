#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron env`: the program, the machine and the configuration, for bug reports.
int env(std::span<const std::string> words);

}  // namespace megatron::cli
