#pragma once

#include <algorithm>
#include <cstdint>

#include "megatron/core/parallel_for.h"

namespace megatron::comm {

// From now on parallel_for in this thread uses `count` threads; 0 changes nothing.
inline void use_threads(int64_t count) {
#if defined(_OPENMP)
  if (count > 0) omp_set_num_threads(static_cast<int>(count));
#else
  static_cast<void>(count);
#endif
}

// The number of threads for parallel_for in each of `num_ranks` ranks of this process.
inline int shared_threads(int num_ranks) { return std::max(1, num_threads() / num_ranks); }

}  // namespace megatron::comm
