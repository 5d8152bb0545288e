#pragma once

#include "megatron/kernels/cuda/vector.cuh"

namespace megatron::kernels::cuda {

inline uint32_t shared_address(const void* p) { return gpu::address_of(p); }
inline float exp2_fast(float x) { return std::exp2(x); }

template <class T>
uint32_t pack_two(float first, float second) {
  return uint32_t{T(first).bits} | uint32_t{T(second).bits} << 16;
}
inline uint32_t max_of_halves(uint32_t a, uint32_t b) {
  return max(a & 0xFFFFu, b & 0xFFFFu) | max(a >> 16, b >> 16) << 16;
}
template <bool kUpper>
uint32_t spread_highest_bits(uint32_t a, uint32_t b) {
  const auto is_set = [](uint32_t x) { return (x >> (kUpper ? 31 : 15) & 1) != 0; };
  return (is_set(a) ? 0xFFFFu : 0u) | (is_set(b) ? 0xFFFF0000u : 0u);
}

inline int load_acquire(const int* counter) {
  gpu::yield();  // a loop that waits lets others run
  return std::atomic_ref(*const_cast<int*>(counter)).load(std::memory_order_acquire);
}
inline void store_release(int* counter, int value) {
  std::atomic_ref(*counter).store(value, std::memory_order_release);
}

// c += a b.
template <class T>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto both = [](uint32_t lower, uint32_t upper) { return lower | uint64_t{upper} << 32; };
  const auto upper_depths = gpu::exchange(both(a[2], a[3]), "multiply_add");
  const auto lower_depths = gpu::exchange(both(a[0], a[1]), "multiply_add");
  const auto right = gpu::exchange(both(b0, b1), "multiply_add");
  const auto element = [](uint64_t four, size_t i) {
    T x;
    x.bits = static_cast<uint16_t>(four >> (16 * i));
    return static_cast<float>(x);
  };
  const size_t lane = threadIdx.x % 32;
  for (size_t i = 0; i < 4; ++i) {  // row lane / 4 + 8 (i / 2), column 2 (lane % 4) + i % 2
    for (size_t depth = 0; depth < 16; ++depth) {
      const size_t pair = depth % 8 / 2;
      const auto& left = (depth < 8 ? lower_depths : upper_depths)[lane / 4 * 4 + pair];
      const auto& other = right[(lane % 4 * 2 + i % 2) * 4 + pair];
      c[i] += element(left, i / 2 * 2 + depth % 2) * element(other, depth / 8 * 2 + depth % 2);
    }
  }
}
// Of the products of warps, which no kernel calls here.
void load_matrices(uint32_t (&x)[4], const void* row);
void load_matrices_transposed(uint32_t (&x)[4], const void* row);
void copy_async_16(void* to, const void* from, bool is_inside);
void copy_async_4(void* to, const void* from, bool is_inside);

}  // namespace megatron::kernels::cuda
