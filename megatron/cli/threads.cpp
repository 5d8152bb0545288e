#include "megatron/cli/threads.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace megatron::cli {

#if defined(_OPENMP)
void use_threads(int64_t num_threads) {
  if (num_threads > 0) omp_set_num_threads(static_cast<int>(num_threads));
}
#else
void use_threads(int64_t) {}
#endif

}  // namespace megatron::cli
