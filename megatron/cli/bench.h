#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron bench`: times training iterations of a known model on random tokens and prints one JSON
// object: tokens/s of all ranks and of each, FLOP/s in both conventions, peak memory of the largest
// rank by category, and the phases of the start. --breakdown adds milliseconds by kind of work and
// the exposed share of communication. --generate-rows times generation instead
// (cli/bench_generation.h). Every rank calls it, the first prints. Returns the exit code.
int bench(std::span<const std::string> argv, const comm::Group& world);

}  // namespace megatron::cli
