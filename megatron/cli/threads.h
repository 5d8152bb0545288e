#pragma once

#include <cstdint>

namespace megatron::cli {

// Threads of CPU kernels started from this thread; 0 leaves OpenMP's choice.
void use_threads(int64_t num_threads);

}  // namespace megatron::cli
