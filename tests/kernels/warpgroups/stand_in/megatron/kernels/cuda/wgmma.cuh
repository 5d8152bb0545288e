#pragma once

#include <type_traits>

#include "megatron/kernels/cuda/matrix_descriptor.cuh"
#include "megatron/kernels/cuda/mma.cuh"

namespace megatron::kernels::cuda {

using CUtensorMap = gpu::Map;
inline constexpr int kWarpgroup = 128;

inline void wgmma_fence() { gpu::order_registers(); }
inline void wgmma_commit() { gpu::commit(); }
template <int kGroups>
void wgmma_wait() {
  gpu::wait_for_products(kGroups);
}
inline void fence_shared() { gpu::fence(); }
template <int kThreads>
void named_barrier(int barrier) {
  gpu::block_barrier(barrier, kThreads);
}
template <int kTiles>
void fence_operand(float (&)[kTiles][4]) {}

template <class T, bool kLeftIsMnMajor, bool kRightIsMnMajor, int kTiles>
void wgmma(float (&sums)[kTiles][4], MatrixDescriptor a, MatrixDescriptor b, bool adds) {
  gpu::start({.sums = &sums[0][0],
              .a = a.bits(),
              .b = b.bits(),
              .adds = adds,
              .left_is_mn_major = kLeftIsMnMajor,
              .right_is_mn_major = kRightIsMnMajor,
              .is_bfloat16 = std::is_same_v<T, BFloat16>,
              .tiles = kTiles});
}
template <class T, bool kRightIsMnMajor, int kTiles>
void wgmma(float (&sums)[kTiles][4], const uint32_t (&a)[4], MatrixDescriptor b) {
  gpu::start({.sums = &sums[0][0],
              .left = a,
              .b = b.bits(),
              .right_is_mn_major = kRightIsMnMajor,
              .is_bfloat16 = std::is_same_v<T, BFloat16>,
              .tiles = kTiles});
}

template <int kRegisters>
void alloc_registers() {}
template <int kRegisters>
void dealloc_registers() {}

inline unsigned char* dynamic_shared_memory() { return gpu::dynamic_memory(); }
inline void store_shared(uint32_t to, uint32_t word) { gpu::store(to, word); }
inline void add_to_global(float4* to, const float (&x)[4]) {
  *to = {to->x + x[0], to->y + x[1], to->z + x[2], to->w + x[3]};
}
inline void copy_tile(uint32_t to, const CUtensorMap& map, uint32_t barrier, int channel, int row,
                      int head, int group, int batch) {
  gpu::copy(to, map, barrier, {channel, row, head, group, batch});
}

}  // namespace megatron::kernels::cuda
