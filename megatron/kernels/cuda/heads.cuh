#pragma once

#include <cstdint>

#include "megatron/kernels/attention.h"
#include "megatron/kernels/cuda/vector.cuh"

namespace megatron::kernels::cuda {

// Where heads lie, for device code: BasicHeadsView without its data.
struct HeadsLayout {
  int64_t b, heads;
  int64_t stride_s, stride_b, heads_per_group, stride_group, stride_head;

  // The first channel of a head of sample `batch` of token i.
  __device__ __forceinline__ int64_t offset(int64_t i, int64_t batch, int64_t head) const {
    return i * stride_s + batch * stride_b + head / heads_per_group * stride_group +
           head % heads_per_group * stride_head;
  }
};

template <class Pointer>
HeadsLayout layout_of(const BasicHeadsView<Pointer>& x) {
  return {x.b, x.heads, x.stride_s, x.stride_b, x.heads_per_group, x.stride_group, x.stride_head};
}

// True when every head begins at a multiple of `bytes`.
template <class Pointer>
bool heads_are_aligned(const BasicHeadsView<Pointer>& x, int64_t bytes) {
  const int64_t width = size_of(x.dtype);
  const auto fits = [&](int64_t stride) { return stride * width % bytes == 0; };
  return reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(bytes) == 0 &&
         fits(x.stride_s) && fits(x.stride_b) && fits(x.stride_group) && fits(x.stride_head);
}

}  // namespace megatron::kernels::cuda
