#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron bench`: times training iterations of a known model on random tokens and prints one JSON
// object: tokens/s, FLOP/s in both conventions, peak memory by category, the
// phases of the start, and with --breakdown milliseconds by kind of work. Returns the exit code.
int bench(std::span<const std::string> argv);

}  // namespace megatron::cli
