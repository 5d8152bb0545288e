#pragma once

#include <algorithm>
#include <cstdint>

#include "megatron/kernels/attention.h"
#include "megatron/kernels/cuda/vector.cuh"

namespace megatron::kernels::cuda {

// The layout of heads for device code: BasicHeadsView without its data.
struct HeadsLayout {
  int64_t b, heads;
  int64_t stride_s, stride_b, heads_per_group, stride_group, stride_head;

  // The first channel of a head of sample `batch` of token i.
  __device__ __forceinline__ int64_t offset(int64_t i, int64_t batch, int64_t head) const {
    // 32-bit division: heads are few, and a 64-bit division is slower than the memory access.
    const auto group = static_cast<uint32_t>(head) / static_cast<uint32_t>(heads_per_group);
    return i * stride_s + batch * stride_b + group * stride_group +
           (head - group * heads_per_group) * stride_head;
  }
};

template <class Pointer>
HeadsLayout layout_of(const BasicHeadsView<Pointer>& x) {
  return {x.b, x.heads, x.stride_s, x.stride_b, x.heads_per_group, x.stride_group, x.stride_head};
}

// A launch of for_each_unit. A block handles a token at a time, with enough whole warps for the
// token's units.
struct TokenGrid {
  unsigned blocks, threads;
};
inline TokenGrid grid_of_tokens(int64_t tokens, int64_t units_per_token) {
  constexpr int64_t kMost = 256;
  const int64_t warps = (std::min(units_per_token, kMost) + 31) / 32;
  return {static_cast<unsigned>(std::min<int64_t>(tokens, int64_t{1} << 20)),
          static_cast<unsigned>(32 * warps)};
}

// Calls f(i, batch, head, unit) for every token of the grid and `per_head` units of every head.
// REQUIRES: fewer than 2^32 tokens, and units in a token.
template <class F>
__device__ __forceinline__ void for_each_unit(const HeadsLayout& layout, int64_t s,
                                              int64_t per_head, const F& f) {
  const auto b = static_cast<uint32_t>(layout.b);
  const auto tokens = static_cast<uint32_t>(s) * b;
  const auto units_of_head = static_cast<uint32_t>(per_head);
  const auto units = static_cast<uint32_t>(layout.heads) * units_of_head;
  for (uint32_t token = blockIdx.x; token < tokens; token += gridDim.x) {
    const uint32_t i = token / b;
    for (uint32_t n = threadIdx.x; n < units; n += blockDim.x) {
      const uint32_t head = n / units_of_head;
      f(int64_t{i}, int64_t{token - i * b}, int64_t{head}, int64_t{n - head * units_of_head});
    }
  }
}

// True if every head begins at a multiple of `bytes`.
template <class Pointer>
bool heads_are_aligned(const BasicHeadsView<Pointer>& x, int64_t bytes) {
  const int64_t width = size_of(x.dtype);
  const auto fits = [&](int64_t stride) { return stride * width % bytes == 0; };
  return reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(bytes) == 0 &&
         fits(x.stride_s) && fits(x.stride_b) && fits(x.stride_group) && fits(x.stride_head);
}

}  // namespace megatron::kernels::cuda
