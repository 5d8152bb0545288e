#pragma once

#include <span>
#include <string>

#include "megatron/comm/group.h"

namespace megatron::cli {

// `megatron test`: self-test of a job's ranks. Lists them, runs sums over the groups of several
// layouts, measures the bandwidth, and compares two training steps of each layout with those of one
// rank. Throws Error for the first failed check. Every rank of `world` calls it.
int self_test(std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
