#pragma once

#include "megatron/parallel/parallel_context.h"

namespace megatron {

// Every rank of the world has a copy of the model, and samples of its own.
inline ParallelContext data_parallel(const comm::Group& world, int64_t instances = 1) {
  return make_parallel_context(world, resolved({.world_size = world.size(),
                                                .num_distributed_optimizer_instances = instances}));
}

}  // namespace megatron
