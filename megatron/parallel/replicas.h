#pragma once

#include <algorithm>
#include <cstdint>

#include "megatron/parallel/config.h"

namespace megatron {

// Number of model replicas before a config is resolved: world_size / (tp * pp * cp). 1 if the
// layout does not fit; problems(ParallelConfig) says so.
inline int64_t replicas_of(const ParallelConfig& config, int64_t world_size) {
  const int64_t ranks = config.tensor_model_parallel_size * config.pipeline_model_parallel_size *
                        config.context_parallel_size;
  return ranks > 0 ? std::max<int64_t>(world_size / ranks, 1) : 1;
}

}  // namespace megatron
