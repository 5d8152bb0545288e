#pragma once

#include <cstdint>

#include "megatron/device/philox.h"
#include "megatron/kernels/attention.h"
#include "megatron/kernels/cuda/launch.cuh"

// What the own kernels of attention share: the views and settings as kernel arguments.
namespace megatron::kernels::cuda {

__device__ inline float infinity() { return __int_as_float(0x7f800000); }

// HeadsView, on the device.
template <class T>
struct Heads {
  T* data;
  int64_t stride_s, stride_b, stride_group, stride_head;
  int heads_per_group;
  bool is_wide;  // as many adjacent channels as were asked for may be read at once

  __device__ T* row(int64_t batch, int head, int64_t token) const {
    return data + token * stride_s + batch * stride_b + head / heads_per_group * stride_group +
           head % heads_per_group * stride_head;
  }
};

// `width`: channels that are to be read at once.
template <class T, class Pointer>
Heads<T> heads_on_device(const BasicHeadsView<Pointer>& x, int64_t width = 4) {
  const bool is_wide = is_aligned(x.data, static_cast<uintptr_t>(width) * sizeof(T)) &&
                       x.d % width == 0 && x.stride_s % width == 0 && x.stride_b % width == 0 &&
                       x.stride_group % width == 0 && x.stride_head % width == 0;
  return {static_cast<T*>(x.data),
          x.stride_s,
          x.stride_b,
          x.stride_group,
          x.stride_head,
          static_cast<int>(x.heads_per_group),
          is_wide};
}

// The settings, and the extents of the problem, by value for a kernel's argument.
struct Problem {
  int64_t sq, sk, b;
  int heads, groups, d;
  float scale;
  bool is_causal;
  int64_t query_offset;
  const int32_t* document_starts;
  const bool* hidden;
  const float* slopes;
  int64_t first_head;
  int64_t dropout_length;
  DropoutKey dropout;
  uint32_t keep_threshold;
  float kept;  // factor of a kept probability
  bool has_dropout;

  __device__ float slope(int head) const { return slopes == nullptr ? 0.0f : slopes[head]; }
  __device__ int64_t first_key(int64_t batch, int64_t query) const {
    if (document_starts == nullptr || query >= sq) return 0;
    const int32_t start = document_starts[batch * sq + query];
    return start > 0 ? start : 0;
  }
  __device__ int64_t last_key(int64_t query) const {  // one past it
    const int64_t last = query_offset + query + 1;
    return is_causal && last < sk ? last : sk;
  }
  __device__ bool is_hidden(int64_t batch, int64_t key) const {
    return hidden != nullptr && hidden[batch * sk + key];
  }
  // What dropout multiplies the probabilities of keys [key, key + 4) by; key is a multiple of 4.
  __device__ void dropout_factors(float (&factors)[4], int64_t batch, int head, int64_t query,
                                  int64_t key) const {
    const int64_t row = (first_head + head) * dropout_length + query_offset + query;
    const int64_t sample = dropout.sample(batch);
    const auto words = philox({static_cast<uint32_t>(key / 4), static_cast<uint32_t>(row),
                               static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                              dropout.key);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      factors[i] = words[static_cast<size_t>(i)] < keep_threshold ? kept : 0.0f;
    }
  }
  __device__ float dropout_factor(int64_t batch, int head, int64_t query, int64_t key) const {
    const int64_t row = (first_head + head) * dropout_length + query_offset + query;
    const int64_t sample = dropout.sample(batch);
    const auto words = philox({static_cast<uint32_t>(key / 4), static_cast<uint32_t>(row),
                               static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                              dropout.key);
    const uint32_t low = key % 2 == 0 ? words[0] : words[1];
    const uint32_t high = key % 2 == 0 ? words[2] : words[3];
    return (key % 4 < 2 ? low : high) < keep_threshold ? kept : 0.0f;
  }
};

inline Problem problem_of(const ConstHeadsView& q, const ConstHeadsView& k,
                          const AttentionSettings& s) {
  const bool has_dropout = s.dropout.is_active();
  return {.sq = q.s,
          .sk = k.s,
          .b = q.b,
          .heads = static_cast<int>(q.heads),
          .groups = static_cast<int>(k.heads),
          .d = static_cast<int>(q.d),
          .scale = s.scale,
          .is_causal = s.is_causal,
          .query_offset = s.query_offset,
          .document_starts = static_cast<const int32_t*>(s.document_starts.data),
          .hidden = static_cast<const bool*>(s.key_padding_mask.data),
          .slopes = static_cast<const float*>(s.alibi_slopes.data),
          .first_head = s.first_head,
          .dropout_length = s.dropout_length > 0 ? s.dropout_length : q.s,
          .dropout = s.dropout,
          .keep_threshold = has_dropout ? s.dropout.keep_threshold() : 0,
          .kept = has_dropout ? s.dropout.scale() : 1.0f,
          .has_dropout = has_dropout};
}

// The same on every lane.
__device__ inline int64_t warp_min(int64_t x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const int64_t other = __shfl_xor_sync(kFullMask, x, step);
    x = other < x ? other : x;
  }
  return x;
}

__device__ inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// What a block of kTile queries works on, a multiple of 32. The last tiles come first: under a
// causal mask they are the longest, and what is left at the end is short.
template <int kTile>
struct QueryBlock {
  int64_t batch, query;
  int head, group;

  __device__ explicit QueryBlock(const Problem& p) {
    const int64_t tiles = (p.sq + kTile - 1) / kTile;
    const int64_t pair = blockIdx.x % (p.b * p.heads);
    batch = pair / p.heads;
    head = static_cast<int>(pair % p.heads);
    group = head / (p.heads / p.groups);
    query = (tiles - 1 - blockIdx.x / (p.b * p.heads)) * kTile;
  }
  // The tiles of keys that some query sees begin in [first_tile, last_key).
  __device__ int64_t first_tile(const Problem& p, int lane) const {
    int64_t first = p.sk;
#pragma unroll
    for (int i = 0; i < kTile; i += kWarp) {
      const int64_t own = query + i + lane;
      if (own < p.sq) first = smaller(first, p.first_key(batch, own));
    }
    return warp_min(first) / kTile * kTile;
  }
  __device__ int64_t last_key(const Problem& p) const {
    return p.last_key(smaller(query + kTile, p.sq) - 1);
  }
};

}  // namespace megatron::kernels::cuda
