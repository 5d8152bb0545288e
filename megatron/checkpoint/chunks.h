#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "megatron/checkpoint/state.h"
#include "megatron/formats/region.h"
#include "megatron/nn/module.h"

namespace megatron {

// Splits a run of a parameter's elements into chunks of the whole tensor. The rank's part of the
// parameter has shape `local`; `sharding` gives its place; `run` [n] holds its elements from
// `begin`, in row-major order. The chunks share the run's memory: at most five for a matrix, one
// for an unsharded parameter, one for each matrix if a gate is stacked in matrices of a tensor.
std::vector<CheckpointTensor> chunks_of(const std::string& name, const Sharding& sharding,
                                        const Shape& local, int64_t begin, const Tensor& run);

// This rank's part of a module, as chunks that share its memory.
std::vector<CheckpointTensor> chunks_of(const Module& module);
// The same without parts that another rank saves: those that are not `is_first` here, and copies of
// tied weights.
std::vector<CheckpointTensor> chunks_to_save(
    const Module& module, const std::function<bool(const ParameterInfo&)>& is_first);

}  // namespace megatron
