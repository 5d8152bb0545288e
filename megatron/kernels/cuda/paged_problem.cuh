#pragma once

#include "megatron/kernels/cuda/attention_problem.cuh"
#include "megatron/kernels/cuda/mma.cuh"
#include "megatron/kernels/paged_attention.h"

// Shared parts of the paged attention kernels. Split-KV (Flash-Decoding): a block has one part of a
// row's keys, all but the last part equally long, and some heads of a group; its warps divide the
// keys. If a row has several parts, each block stores its partial sums, and the last block of the
// row to finish combines them in order. Scores are in base 2: exp(x) = 2^(x log2 e).
namespace megatron::kernels::cuda {

inline constexpr float kBase2 = 1.4426950408889634f;  // log2 e

// Maximum score to subtract: 0 in place of -infinity, so that fully masked keys get exp(-infinity)
// = 0 and not NaN.
__device__ __forceinline__ float finite(float largest) {
  return largest == -infinity() ? 0.0f : largest;
}

// Arguments of a paged attention call. S is the type of keys and values in pages: T or Float8E4M3.
template <class T, class S = T>
struct PagedProblem {
  const int32_t* pages;
  const int32_t* lengths;
  const int32_t* queries;
  S* keys;
  S* values;
  float2* scales;  // FP8: scales of each key and its value
  DeviceHeads<T> out;
  DeviceHeads<const T> q, k, v;
  int max_pages, page_tokens;
  int heads, groups, chunks, d;  // chunks: blocks that share the heads of a group
  float scale;
  const float* slopes;         // may be null
  const float* distance_bias;  // [heads, num_distances]; may be null
  int num_distances;
  int window;          // 0: none
  float logit_cap;     // 0: none
  const float* sinks;  // [heads]; may be null
  // Workspace for rows with several parts.
  int* counters;              // [rows, heads], zero between calls: finished parts
  float* sums = nullptr;      // [rows, heads, max_parts, d]: weighted sums of values
  float2* weights = nullptr;  // [rows, heads, max_parts]: maximum score, sum of weights
  int part_keys = 0, max_parts = 0;

  // Splits rows into parts of `keys_of_part` keys and lays out the workspace.
  void divide(int64_t rows, int64_t max_length, int keys_of_part) {
    part_keys = keys_of_part;
    max_parts = static_cast<int>((max_length + part_keys - 1) / part_keys);
    const int64_t num_counters = (rows * heads + 3) / 4 * 4;
    sums = reinterpret_cast<float*>(counters + num_counters);
    weights = reinterpret_cast<float2*>(sums + rows * heads * max_parts * d);
  }

  // Index of the head of a group and a token of a row among all heads in the pages.
  __device__ int64_t head_in_pages(int row, int group, int token) const {
    const int page = pages[row * max_pages + token / page_tokens];
    const int64_t slot = int64_t{page} * page_tokens + token % page_tokens;
    return slot * groups + group;
  }
  __device__ S* head_data(S* store, int row, int group, int token) const {
    return store + head_in_pages(row, group, token) * d;
  }
  // Number of a row's tokens that are in its pages: all but a new one.
  __device__ int num_stored(int length) const { return k.data == nullptr ? length : length - 1; }
  // The first key that the last of `length` tokens sees, and the first part with such a key.
  __device__ int first_key(int length) const {
    return window > 0 && length > window ? length - window : 0;
  }
  __device__ int first_part_of(int length) const { return first_key(length) / part_keys; }
  __device__ float capped(float score) const {
    return logit_cap > 0 ? logit_cap * tanhf(score / logit_cap) : score;
  }
  // The sum of a head's weights relative to its largest score, the sink's included.
  __device__ float with_sink(float total, float largest, int head) const {
    return sinks == nullptr ? total : total + exp2_fast(sinks[head] * kBase2 - finite(largest));
  }
  // Additive bias of a key's score for the last of `length` tokens.
  __device__ float bias(int head, int key, int length) const {
    float sum = slopes == nullptr ? 0.0f : slopes[head] * static_cast<float>(key);
    const int distance = length - 1 - key;
    if (distance < num_distances) sum += distance_bias[head * num_distances + distance];
    return sum;
  }
  __device__ int64_t first_part(int row, int head) const {
    return (int64_t{row} * heads + head) * max_parts;
  }
};

// sum = sum * factor + x * x_factor.
__device__ __forceinline__ void add_scaled(float4& sum, float factor, float4 x, float x_factor) {
  sum.x = fmaf(x.x, x_factor, sum.x * factor);
  sum.y = fmaf(x.y, x_factor, sum.y * factor);
  sum.z = fmaf(x.z, x_factor, sum.z * factor);
  sum.w = fmaf(x.w, x_factor, sum.w * factor);
}

template <class T>
__device__ __forceinline__ void store_mean(T* to, float4 sum, float total) {
  const float mean[4] = {sum.x / total, sum.y / total, sum.z / total, sum.w / total};
  store(to, mean);
}

// Combines the partial sums of a row's parts, stored by other blocks, and writes the output.
template <class T, class S>
__device__ void combine_parts(const PagedProblem<T, S>& p, int row, int token, int first_head,
                              int num_heads, int first_part, int parts) {
  const int packs = p.d / 4;
  for (int i = static_cast<int>(threadIdx.x); i < num_heads * packs;
       i += static_cast<int>(blockDim.x)) {
    const int head = first_head + i / packs;
    const int c = i % packs * 4;
    const int64_t first = p.first_part(row, head);
    const auto* const sums = reinterpret_cast<const float4*>(p.sums + first * p.d + c);
    float largest = -infinity();
    float total = 0;
    float4 sum{};
#pragma unroll 4
    for (int part = first_part; part < parts; ++part) {  // the loads are independent
      const float2 weight = __ldcg(p.weights + first + part);
      const float4 x = __ldcg(sums + int64_t{part} * packs);
      const float now = fmaxf(largest, weight.x);
      const float factor = exp2_fast(largest - finite(now));
      const float x_factor = exp2_fast(weight.x - finite(now));
      total = fmaf(weight.y, x_factor, total * factor);
      add_scaled(sum, factor, x, x_factor);
      largest = now;
    }
    store_mean(p.out.row(0, head, token) + c, sum, p.with_sink(total, largest, head));
  }
}

// Work of a block: row, group, chunk of its heads, and part of the keys.
struct PagedBlockIndex {
  int row, group, chunk, part, first_head, num_heads;

  template <class T, class S>
  __device__ PagedBlockIndex(const PagedProblem<T, S>& p, int heads_of_block)
      : row(static_cast<int>(blockIdx.x) / p.chunks / p.groups),
        group(static_cast<int>(blockIdx.x) / p.chunks % p.groups),
        chunk(static_cast<int>(blockIdx.x) % p.chunks),
        part(static_cast<int>(blockIdx.y)) {
    const int heads_per_group = p.heads / p.groups;
    first_head = group * heads_per_group + chunk * heads_of_block;
    num_heads = min(heads_of_block, heads_per_group - chunk * heads_of_block);
  }
};

// Combines the results of a block's warps: for warp w and head h the maximum score, the sum of
// weights, and sums_of(w, h), the weighted sums of the channels, at a multiple of 16 bytes. Writes
// the output, or the part's sums; the last block of a row then combines its parts. REQUIRES: all
// threads call it after a barrier; length is that of the row.
template <int kWarps, int kHeads, class T, class S, class SumsOf>
__device__ void finish_part(const PagedProblem<T, S>& p, const PagedBlockIndex& at, int token,
                            int length, const float (&largest_of)[kWarps][kHeads],
                            const float (&total_of)[kWarps][kHeads], const SumsOf& sums_of) {
  __shared__ bool is_last_block;
  const int end_part = (length + p.part_keys - 1) / p.part_keys;
  const int first_part = p.first_part_of(length);
  const int parts = end_part - first_part;
  const int packs = p.d / 4;
  for (int i = static_cast<int>(threadIdx.x); i < at.num_heads * packs;
       i += static_cast<int>(blockDim.x)) {
    const int h = i / packs;
    const int c = i % packs * 4;
    float largest = largest_of[0][h];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, largest_of[w][h]);
    float total = 0;
    float4 sum{};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = exp2_fast(largest_of[w][h] - finite(largest));
      total = fmaf(total_of[w][h], factor, total);
      add_scaled(sum, 1, *reinterpret_cast<const float4*>(sums_of(w, h) + c), factor);
    }
    const int head = at.first_head + h;
    if (parts == 1) {
      store_mean(p.out.row(0, head, token) + c, sum, p.with_sink(total, largest, head));
      continue;
    }
    const int64_t part = p.first_part(at.row, head) + at.part;
    *reinterpret_cast<float4*>(p.sums + part * p.d + c) = sum;
    if (c == 0) p.weights[part] = {largest, total};
  }
  if (parts == 1) return;
  __threadfence();
  __syncthreads();
  int* const counter = p.counters + at.row * p.heads + at.first_head;
  if (threadIdx.x == 0) {
    is_last_block = atomicAdd(counter, 1) == parts - 1;
    if (is_last_block) *counter = 0;  // for the next call
    __threadfence();
  }
  __syncthreads();
  if (!is_last_block) return;
  combine_parts(p, at.row, token, at.first_head, at.num_heads, first_part, end_part);
}

// Paged attention on tensor cores, for 16-bit models and heads of at most 128 channels.
template <class T, class S>
void tensor_paged_attention(const PagedProblem<T, S>& problem, int64_t rows, int64_t max_length,
                            Stream stream);

}  // namespace megatron::kernels::cuda
