#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace megatron {

// Threads that parallel_for uses when called from this thread. 1 without OpenMP.
inline int num_threads() {
#if defined(_OPENMP)
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

// Calls f(begin, end) on disjoint ranges that cover [0, n), at most one range per thread. No range
// except the last is shorter than `grain`. The range of a thread depends only on n, grain and the
// number of threads. f must not throw.
template <class F>
void parallel_for(int64_t n, int64_t grain, const F& f) {
  if (n <= 0) return;
  const int64_t wanted = (n + grain - 1) / std::max<int64_t>(grain, 1);
  const int64_t parts = std::min<int64_t>(wanted, num_threads());
  if (parts <= 1) {
    f(int64_t{0}, n);
    return;
  }
#if defined(_OPENMP)
#pragma omp parallel num_threads(static_cast <int>(parts))
  {
    const int64_t team = omp_get_num_threads();
    const int64_t part = omp_get_thread_num();
    const int64_t begin = n * part / team;
    const int64_t end = n * (part + 1) / team;
    if (begin < end) f(begin, end);
  }
#endif
}

}  // namespace megatron
