#pragma once

#include "megatron/parallel/parallel_context.h"

namespace megatron {

// Every rank of the world has a copy of the model, and samples of its own.
inline ParallelContext data_parallel(const comm::Group& world) {
  return make_parallel_context(world, resolved({.world_size = world.size()}));
}

}  // namespace megatron
