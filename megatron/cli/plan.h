#pragma once

#include <span>
#include <string>

namespace megatron::cli {

// `megatron plan <training flags>`: shows the memory of each rank, the computation and
// communication of an iteration, and its estimated time. Allocates nothing and needs no GPU.
// Returns the exit code.
int plan(std::span<const std::string> argv);

}  // namespace megatron::cli
