#pragma once

#include <vector>

#include "megatron/optim/flat_parameters.h"
#include "megatron/parallel/fp8_gather.h"

// The optimizer's parameters as Fp8Gather needs them.
namespace megatron {

// Sets OptimizedParameter::fp8 of the weights of FP8 layers in `chunks`. To be called before
// FlatParameters takes them over.
void find_fp8_layers(std::vector<OptimizedParameter>& parameters,
                     const std::vector<const Module*>& chunks);

// The buckets of weights that ranks gather in FP8, in the order of buffers and buckets; their parts
// are views of FlatBuffer::params.
std::vector<Fp8Bucket> fp8_buckets(const FlatParameters& parameters);

}  // namespace megatron
