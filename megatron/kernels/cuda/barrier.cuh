#pragma once

#include <cstdint>

// Barriers in shared memory that count arrivals of threads and bytes of bulk copies (mbarrier,
// compute capability 9.0). A barrier is named by its address in shared memory.
namespace megatron::kernels::cuda::barrier {

__device__ __forceinline__ void init(uint32_t at, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(arrivals));
}
__device__ __forceinline__ void make_visible() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void arrive(uint32_t at) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory");
}
__device__ __forceinline__ void arrive_and_expect(uint32_t at, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
}
// Waits for the end of the phase with this parity.
__device__ __forceinline__ void wait(uint32_t at, uint32_t parity) {
  uint32_t is_done = 0;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(is_done)
        : "r"(at), "r"(parity)
        : "memory");
  } while (is_done == 0);
}

}  // namespace megatron::kernels::cuda::barrier
