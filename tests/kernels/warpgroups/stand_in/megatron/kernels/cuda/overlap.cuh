#pragma once

namespace megatron::kernels::cuda {

inline void wait_for_earlier_kernels() {}
inline void let_next_kernel_start() {}

}  // namespace megatron::kernels::cuda
