#pragma once

#include <algorithm>
#include <cstdint>

#include "megatron/kernels/attention.h"
#include "megatron/kernels/cuda/launch.cuh"

// Views and settings of attention as kernel arguments.
namespace megatron::kernels::cuda {

__device__ inline float infinity() { return __int_as_float(0x7f800000); }

// Device form of a HeadsView.
template <class T>
struct DeviceHeads {
  T* data;
  int64_t stride_s, stride_b, stride_group, stride_head;
  int heads_per_group;
  bool is_wide;  // allows vector loads of `width` adjacent channels

  __device__ T* row(int64_t batch, int head, int64_t token) const {
    return data + token * stride_s + batch * stride_b + head / heads_per_group * stride_group +
           head % heads_per_group * stride_head;
  }
};

// `width`: channels of a vector load.
template <class T, class Pointer>
DeviceHeads<T> heads_on_device(const BasicHeadsView<Pointer>& x, int64_t width = 4) {
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

// Extents and settings of an attention call, passed to kernels by value.
struct Problem {
  int64_t b;
  int sq, sk, heads, groups, d;
  float scale;
  bool is_causal;
  int query_offset;    // position of query 0 relative to key 0
  int first_position;  // position of query 0
  int key_offset;      // position of key 0
  const int32_t* document_starts;
  const int32_t* prefix_ends;
  const bool* key_padding_mask;
  const float* slopes;
  const float* relative_bias;  // [heads, sq + sk - 1]
  int window;                  // 0: none
  float logit_cap;             // 0: none
  const float* sinks;          // [heads]
  int64_t first_head;
  int64_t dropout_rows_of_head;
  DropoutKey dropout;
  PhiloxKeys<kDropoutRounds> dropout_keys;
  uint32_t keep_threshold;
  float kept;  // scale of a kept probability
  bool has_dropout;

  __device__ float slope(int head) const { return slopes == nullptr ? 0.0f : slopes[head]; }
  // The relative bias of a head, indexed by key - query. REQUIRES: relative_bias != nullptr.
  __device__ const float* bias_by_distance(int head) const {
    return relative_bias + int64_t{head} * (sq + sk - 1) + sq - 1;
  }
  // Additive bias of a score: ALiBi and relative bias. REQUIRES: the query and the key exist.
  __device__ float bias(int head, float slope, int64_t query, int64_t key) const {
    const float alibi = slope * static_cast<float>(key_offset + key);
    return relative_bias == nullptr ? alibi : alibi + bias_by_distance(head)[key - query];
  }
  // The score of a product scale q k, without its bias, and its derivative.
  __device__ float capped(float product) const {
    return logit_cap > 0 ? logit_cap * tanhf(product / logit_cap) : product;
  }
  __device__ float cap_slope(float product) const {
    if (logit_cap <= 0) return 1.0f;
    const float share = tanhf(product / logit_cap);
    return 1.0f - share * share;
  }
  // The first key of a query's window.
  template <class Index>
  __device__ Index window_first(Index query) const {
    const Index first = query_offset + query - window + 1;
    return window > 0 && first > 0 ? first : 0;
  }
  // One past the last query with a window that begins at or before a key.
  template <class Index>
  __device__ Index end_query(Index key) const {
    if (window == 0) return sq;
    const Index end = key + window - query_offset;
    return end < sq ? end : sq;
  }
  template <class Index>
  __device__ Index first_key(int64_t batch, Index query) const {
    const Index in_window = window_first(query);
    if (document_starts == nullptr || query < 0 || query >= sq) return in_window;
    const Index start = document_starts[batch * sq + query] - key_offset;
    return start > in_window ? start : in_window;
  }
  // One past the last visible key of a query, by the causal mask.
  template <class Index>
  __device__ Index last_key(Index query) const {
    const Index last = query_offset + query + 1;
    return is_causal && last < sk ? last : sk;
  }
  // The same, limited to the query's prefix.
  template <class Index>
  __device__ Index last_key(int64_t batch, Index query) const {
    const Index last = last_key(query);
    if (prefix_ends == nullptr || query < 0 || query >= sq) return last;
    const Index end = prefix_ends[batch * sq + query];
    return end < last ? last : end < sk ? end : sk;
  }
  __device__ bool is_padding(int64_t batch, int64_t key) const {
    return key_padding_mask != nullptr && key_padding_mask[batch * sk + key];
  }
  // The first dropout row of a head.
  __device__ int64_t first_dropout_row(int head) const {
    return (first_head + head) * dropout_rows_of_head;
  }
  __device__ float dropout_factor(int64_t batch, int head, int64_t query, int64_t key) const {
    const int64_t position = first_position + query;
    key += key_offset;
    const auto words =
        dropout_words(static_cast<uint32_t>(dropout_column(key)),
                      static_cast<uint32_t>(first_dropout_row(head) + dropout_row(position)),
                      dropout.sample(batch), dropout_keys);
    return dropout_bits(words, position, key) < keep_threshold ? kept : 0.0f;
  }
};

inline Problem problem_of(const ConstHeadsView& q, const ConstHeadsView& k,
                          const AttentionSettings& s) {
  const bool has_dropout = s.dropout.is_active();
  return {
      .b = q.b,
      .sq = static_cast<int>(q.s),
      .sk = static_cast<int>(k.s),
      .heads = static_cast<int>(q.heads),
      .groups = static_cast<int>(k.heads),
      .d = static_cast<int>(q.d),
      .scale = s.scale,
      .is_causal = s.is_causal,
      .query_offset = static_cast<int>(s.query_offset - s.key_offset),
      .first_position = static_cast<int>(s.query_offset),
      .key_offset = static_cast<int>(s.key_offset),
      .document_starts = static_cast<const int32_t*>(s.document_starts.data),
      .prefix_ends = static_cast<const int32_t*>(s.prefix_ends.data),
      .key_padding_mask = static_cast<const bool*>(s.key_padding_mask.data),
      .slopes = static_cast<const float*>(s.alibi_slopes.data),
      .relative_bias = static_cast<const float*>(s.relative_bias.data),
      .window = static_cast<int>(std::min<int64_t>(s.window, 1 << 30)),
      .logit_cap = s.logit_cap,
      .sinks = static_cast<const float*>(s.sinks.data),
      .first_head = s.first_head,
      .dropout_rows_of_head = dropout_rows_of_head(s.dropout_length > 0 ? s.dropout_length : q.s),
      .dropout = s.dropout,
      .dropout_keys = PhiloxKeys<kDropoutRounds>(s.dropout.key),
      .keep_threshold = has_dropout ? s.dropout.keep_threshold() : 0,
      .kept = has_dropout ? s.dropout.scale() : 1.0f,
      .has_dropout = has_dropout};
}

// Minimum over the warp; every lane gets it.
__device__ inline int64_t warp_min(int64_t x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const int64_t other = __shfl_xor_sync(kFullMask, x, step);
    x = other < x ? other : x;
  }
  return x;
}

__device__ inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace megatron::kernels::cuda
