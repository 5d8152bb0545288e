#pragma once

#include <cstdint>

#include "megatron/kernels/cuda/mma.cuh"

// The instructions of the kernel decode_text beside those of mma.cuh and barrier.cuh, one function
// each (compute capability 9.0).
namespace megatron::kernels::cuda {

// --- Memory that blocks share while they run ---

// 16 bytes, 4 or 2 that are read or written at once, by no thread's cache. REQUIRES: they are
// aligned.
__device__ __forceinline__ uint4 load_relaxed(const uint32_t* from) {
  uint4 four;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return four;
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
// What the thread has stored before is there for all who see what is stored after it.
__device__ __forceinline__ void fence_of_device() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
// The multiprocessor's cycles; only differences mean something.
__device__ __forceinline__ uint32_t cycles_now() {
  uint32_t cycles;
  asm volatile("mov.u32 %0, %clock;" : "=r"(cycles)::"memory");
  return cycles;
}
// Returns that many cycles after cycles_now() was `since`.
__device__ __forceinline__ void wait_cycles(uint32_t since, int cycles) {
  while (static_cast<int>(cycles_now() - since) < cycles) {
  }
}

// --- Memory that nobody writes ---

// The compiler does not move these to the use of their result, behind what is waited for.
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
// 16 bytes that the multiprocessor does not keep. REQUIRES: they are aligned.
__device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 four;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(four.x), "=r"(four.y), "=r"(four.z), "=r"(four.w)
               : "l"(__cvta_generic_to_global(from)));
  return four;
}
// Asks for the 128 bytes around it, so that they are in the cache later.
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
// Starts copying `bytes`, a multiple of 16, which leave the cache first. They count at the barrier.
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
// A barrier of kThreads threads of the block, all of some warps.
template <int kThreads>
__device__ __forceinline__ void barrier_of_threads() {
  asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
}

// --- Registers ---

// The compiler takes x for another number after this.
__device__ __forceinline__ void forget(int& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void forget(uint32_t& x) { asm volatile("" : "+r"(x)); }
// x has its value here: what computes it does not come later.
__device__ __forceinline__ void settle(float& x) { asm volatile("" : "+f"(x)); }

}  // namespace megatron::kernels::cuda
