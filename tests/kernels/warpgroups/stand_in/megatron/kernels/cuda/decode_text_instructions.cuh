#pragma once

#include "megatron/kernels/cuda/mma.cuh"

namespace megatron::kernels::cuda {

// Loads a tag before the value in front of it, which is stored first.
inline uint4 load_relaxed(const uint32_t* from) {
  gpu::yield();  // a loop that waits lets others run
  const auto word = [&](int i) {
    return std::atomic_ref(const_cast<uint32_t*>(from)[i]).load(std::memory_order_acquire);
  };
  const uint32_t w = word(3), z = word(2), y = word(1);
  return {word(0), y, z, w};
}
inline uint2 load_relaxed_two(const uint32_t* from) {
  gpu::yield();
  const auto word = [&](int i) {
    return std::atomic_ref(const_cast<uint32_t*>(from)[i]).load(std::memory_order_acquire);
  };
  const uint32_t y = word(1);
  return {word(0), y};
}
inline void store_relaxed(uint32_t* to, uint32_t word) {
  std::atomic_ref(*to).store(word, std::memory_order_release);
}
inline void store_relaxed(uint32_t* to, uint4 four) {
  store_relaxed(to, four.x);
  store_relaxed(to + 1, four.y);
  store_relaxed(to + 2, four.z);
  store_relaxed(to + 3, four.w);
}
inline void store_relaxed(uint32_t* to, uint2 two) {
  store_relaxed(to, two.x);
  store_relaxed(to + 1, two.y);
}
inline void store_relaxed(uint16_t* to, uint16_t half) {
  std::atomic_ref(*to).store(half, std::memory_order_release);
}
inline void fence_of_device() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline uint32_t cycles_now() { return 0; }
inline void wait_cycles(uint32_t, int) {}

template <class T>
T load_now(const T* from) {
  return *from;
}
inline uint4 load_once(const void* from) { return *static_cast<const uint4*>(from); }
inline void prefetch_line(const void*) {}

inline uint4 load_shared(uint32_t from) {
  uint4 four;
  gpu::load(&four, from, sizeof four);
  return four;
}
inline uint2 load_shared_two(uint32_t from) {
  uint2 two;
  gpu::load(&two, from, sizeof two);
  return two;
}
inline void store_shared(uint32_t to, float x) { gpu::store(to, __float_as_uint(x)); }
inline void copy_once(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  gpu::copy_bytes(to, from, bytes, barrier);
}
inline unsigned char* dynamic_memory() { return gpu::dynamic_memory(); }
template <int kThreads>
void barrier_of_threads() {
  gpu::block_barrier(1, kThreads);
}

inline void make_opaque(int&) {}
inline void make_opaque(uint32_t&) {}
inline void pin_value(float&) {}

}  // namespace megatron::kernels::cuda
