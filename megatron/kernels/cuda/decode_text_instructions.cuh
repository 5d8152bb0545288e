#pragma once

#include <cstdint>

#include "megatron/kernels/cuda/mma.cuh"

// Instructions of the kernel decode_text that mma.cuh and barrier.cuh lack, one function each
// (compute capability 9.0).
namespace megatron::kernels::cuda {

// --- Global memory shared by running blocks ---

// Relaxed loads and stores of 16, 8, 4 or 2 bytes at GPU scope, which bypass L1. REQUIRES: natural
// alignment.
__device__ __forceinline__ uint4 load_relaxed(const uint32_t* from) {
  uint4 four;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return four;
}
__device__ __forceinline__ uint2 load_relaxed_two(const uint32_t* from) {
  uint2 two;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(two.x), "=r"(two.y)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return two;
}
__device__ __forceinline__ void store_relaxed(uint32_t* to, uint2 two) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
               "r"(two.x), "r"(two.y)
               : "memory");
}
__device__ __forceinline__ void store_relaxed(uint32_t* to, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(word)
               : "memory");
}
__device__ __forceinline__ void store_relaxed(uint16_t* to, uint16_t half) {
  asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "h"(half)
               : "memory");
}
__device__ __forceinline__ void store_relaxed(uint32_t* to, uint4 four) {
  asm volatile(
      "st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
      "r"(four.x), "r"(four.y), "r"(four.z), "r"(four.w)
      : "memory");
}
// Acquire-release fence at GPU scope: orders the thread's earlier accesses before its later ones.
__device__ __forceinline__ void fence_of_device() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
// The multiprocessor's cycle counter; only differences are meaningful.
__device__ __forceinline__ uint32_t cycles_now() {
  uint32_t cycles;
  asm volatile("mov.u32 %0, %clock;" : "=r"(cycles)::"memory");
  return cycles;
}
// Spins until `cycles` cycles after cycles_now() was `since`.
__device__ __forceinline__ void wait_cycles(uint32_t since, int cycles) {
  while (static_cast<int>(cycles_now() - since) < cycles) {
  }
}

// --- Read-only global memory ---

// Volatile loads, which the compiler does not sink to the use of their result, past a wait.
__device__ __forceinline__ uint16_t load_now(const uint16_t* from) {
  uint16_t x;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(x) : "l"(__cvta_generic_to_global(from)));
  return x;
}
__device__ __forceinline__ uint4 load_now(const uint4* from) {
  uint4 x;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(__cvta_generic_to_global(from)));
  return x;
}
// Loads 16 bytes without allocating in L1. REQUIRES: 16-byte alignment.
__device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 four;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
               : "l"(__cvta_generic_to_global(from)));
  return four;
}
// Prefetches the 128-byte line of an address into L2.
__device__ __forceinline__ void prefetch_line(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at)));
}

// --- Shared memory ---

__device__ __forceinline__ uint4 load_shared(uint32_t from) {
  uint4 four;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
               : "r"(from)
               : "memory");
  return four;
}
__device__ __forceinline__ uint2 load_shared_two(uint32_t from) {
  uint2 two;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(two.x), "=r"(two.y)
               : "r"(from)
               : "memory");
  return two;
}
__device__ __forceinline__ void store_shared(uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
// Bulk copy of `bytes`, a multiple of 16, with the L2 policy evict-first; the barrier counts them.
__device__ __forceinline__ void copy_once(uint32_t to, const void* from, uint32_t bytes,
                                          uint32_t barrier) {
  uint64_t read_once;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(read_once));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(read_once)
      : "memory");
}
__device__ __forceinline__ unsigned char* dynamic_memory() {
  extern __shared__ __align__(128) unsigned char dynamic_bytes[];
  return dynamic_bytes;
}
// Barrier of kThreads threads of the block: whole warps.
template <int kThreads>
__device__ __forceinline__ void barrier_of_threads() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// --- Registers ---

// Optimization barrier: the compiler assumes that x changes here.
__device__ __forceinline__ void make_opaque(int& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void make_opaque(uint32_t& x) { asm volatile("" : "+r"(x)); }
// Optimization barrier: the computation of x does not move past this point.
__device__ __forceinline__ void pin_value(float& x) { asm volatile("" : "+f"(x)); }

}  // namespace megatron::kernels::cuda
