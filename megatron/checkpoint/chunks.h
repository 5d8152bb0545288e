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

// All that this rank holds of a module, as chunks that share its memory.
std::vector<CheckpointTensor> chunks_of(const Module& module);
// The same without what another rank saves: parts that all tensor-parallel ranks have belong to the
// first, copies of tied weights to their originals.
std::vector<CheckpointTensor> chunks_to_save(const Module& module, int tensor_parallel_rank);

}  // namespace megatron
