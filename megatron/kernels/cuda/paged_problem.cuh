#pragma once

#include "megatron/kernels/cuda/attention_problem.cuh"
#include "megatron/kernels/cuda/mma.cuh"
#include "megatron/kernels/paged_attention.h"

// What the kernels of attention over pages share. A block has a part of at most kPagedKeys keys of
// a row and some heads of a group; its warps divide the keys. A block whose row has several parts
// stores its sums; the last block of the row adds them in order. Scores are in base 2: exp(x) =
// 2^(x log2 e).
namespace megatron::kernels::cuda {

inline constexpr float kPagedLog2E = 1.4426950408889634f;

template <class T>
struct PagedProblem {
  const int32_t* pages;
  const int32_t* lengths;
  const int32_t* queries;
  T* keys;
  T* values;
  Heads<T> out;
  Heads<const T> q, k, v;
  int max_pages, page_tokens;
  int heads, groups, chunks, d;  // chunks: blocks that share the heads of a group
  float scale;
  const float* slopes;         // may be null
  const float* distance_bias;  // [heads, num_distances]; may be null
  int num_distances;
  int* counters;    // [rows, heads], zero
  float* partials;  // [rows, heads, parts, 2 + d]: largest score, sum, sums of values

  __device__ T* place(T* store, int row, int group, int token) const {
    const int page = pages[row * max_pages + token / page_tokens];
    const int64_t slot = int64_t{page} * page_tokens + token % page_tokens;
    return store + (slot * groups + group) * d;
  }
  // How many of a row's tokens are in its pages: all but a new one.
  __device__ int num_stored(int length) const { return k.data == nullptr ? length : length - 1; }
  // Added to the score of a key for the last of `length` tokens.
  __device__ float bias(int head, int key, int length) const {
    float sum = slopes == nullptr ? 0.0f : slopes[head] * static_cast<float>(key);
    const int distance = length - 1 - key;
    if (distance < num_distances) sum += distance_bias[head * num_distances + distance];
    return sum;
  }
  __device__ float* partial(int row, int head, int part) const {
    return partials + ((int64_t{row} * heads + head) * gridDim.y + part) * (d + 2);
  }
};

// Where no key counts, the largest score is -infinity, and every difference to 0 is, too.
__device__ __forceinline__ float finite(float largest) {
  return largest == -infinity() ? 0.0f : largest;
}

// Adds the parts of a row, which other blocks stored.
template <class T>
__device__ void combine_parts(const PagedProblem<T>& p, int row, int token, int first_head,
                              int num_heads, int parts) {
  for (int i = static_cast<int>(threadIdx.x); i < num_heads * p.d;
       i += static_cast<int>(blockDim.x)) {
    const int head = first_head + i / p.d;
    const int c = i % p.d;
    float largest = -infinity();
    for (int part = 0; part < parts; ++part) {
      largest = fmaxf(largest, __ldcg(p.partial(row, head, part)));
    }
    float total = 0;
    float sum = 0;
    for (int part = 0; part < parts; ++part) {
      const float* const from = p.partial(row, head, part);
      const float factor = exp2_fast(__ldcg(from) - finite(largest));
      total = fmaf(__ldcg(from + 1), factor, total);
      sum = fmaf(__ldcg(from + 2 + c), factor, sum);
    }
    p.out.row(0, head, token)[c] = from_float<T>(sum / total);
  }
}

// A block's place in the grid.
struct PagedPlace {
  int row, group, chunk, part, first_head, num_heads;

  template <class T>
  __device__ PagedPlace(const PagedProblem<T>& p, int heads_of_block)
      : row(static_cast<int>(blockIdx.x) / p.chunks / p.groups),
        group(static_cast<int>(blockIdx.x) / p.chunks % p.groups),
        chunk(static_cast<int>(blockIdx.x) % p.chunks),
        part(static_cast<int>(blockIdx.y)) {
    const int heads_per_group = p.heads / p.groups;
    first_head = group * heads_per_group + chunk * heads_of_block;
    num_heads = min(heads_of_block, heads_per_group - chunk * heads_of_block);
  }
};

// The results of the warps of a block: of warp w and head h the largest score, the sum of weights,
// and sum_at(w, h, c), the weighted sum of channel c. Writes the output, or the part's sums.
// REQUIRES: all threads call it after a barrier; length is that of the row.
template <int kWarps, int kHeads, class T, class SumAt>
__device__ void finish_part(const PagedProblem<T>& p, const PagedPlace& at, int token, int length,
                            const float (&largest_of)[kWarps][kHeads],
                            const float (&total_of)[kWarps][kHeads], const SumAt& sum_at) {
  __shared__ bool is_last_block;
  const int parts = (length + kPagedKeys - 1) / kPagedKeys;
  for (int i = static_cast<int>(threadIdx.x); i < at.num_heads * p.d;
       i += static_cast<int>(blockDim.x)) {
    const int h = i / p.d;
    const int c = i % p.d;
    float largest = largest_of[0][h];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, largest_of[w][h]);
    float total = 0;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = exp2_fast(largest_of[w][h] - finite(largest));
      total = fmaf(total_of[w][h], factor, total);
      sum = fmaf(sum_at(w, h, c), factor, sum);
    }
    if (parts == 1) {
      p.out.row(0, at.first_head + h, token)[c] = from_float<T>(sum / total);
      continue;
    }
    float* const to = p.partial(at.row, at.first_head + h, at.part);
    to[2 + c] = sum;
    if (c == 0) {
      to[0] = largest;
      to[1] = total;
    }
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
  if (is_last_block) combine_parts(p, at.row, token, at.first_head, at.num_heads, parts);
}

// Of 16 bits and at most 128 channels, on tensor cores.
template <class T>
void tensor_paged_attention(PagedProblem<T> problem, int64_t rows, int64_t parts, Stream stream);

}  // namespace megatron::kernels::cuda
