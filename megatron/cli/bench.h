#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron bench`: times training iterations of a known model on random tokens and prints one JSON
// object: tokens/s of all ranks and of each, FLOP/s in both conventions, peak memory of the largest
// rank by category, the phases of the start, and with --breakdown milliseconds by kind of work and
// how much of an iteration is exposed communication. Every rank calls it, the first prints. Returns
// the exit code.
int bench(std::span<const std::string> argv, const comm::Group& world);

}  // namespace megatron::cli
