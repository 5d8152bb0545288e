#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/checkpoint/region.h"
#include "megatron/checkpoint/state.h"
#include "megatron/nn/module.h"

namespace megatron {

// A run of a parameter's elements as chunks of the whole tensor. The rank's part of the parameter
// has shape `local`, and is which part `sharding` says; `run` [n] are its elements from `begin` on,
// in row-major order. The chunks share the run's memory: at most five for a matrix, one for all of
// an unsharded parameter.
std::vector<CheckpointTensor> chunks_of(const std::string& name, const Sharding& sharding,
                                        const Shape& local, int64_t begin, const Tensor& run);

}  // namespace megatron
