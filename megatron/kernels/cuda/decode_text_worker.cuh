#pragma once

#include "megatron/kernels/cuda/decode_text_division.h"
#include "megatron/kernels/cuda/decode_text_waits.h"
#include "megatron/kernels/cuda/exchange.cuh"
#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/cuda/weight_ring.cuh"
#include "megatron/kernels/decode_text.h"

// What the parts of the kernel decode_text share.
namespace megatron::kernels::cuda::text {

// The workspace is divided in words; vectors begin with lines of the cache.
using Word = uint32_t;
inline constexpr int kLineWords = 32;

// Where vectors lie, in words.
struct Places {
  int search, x, qkv, attention, middle, activated, splits, end;
};

struct Parameters {
  DecodeTextShape shape;
  const DecodeTextLayer* layers;
  const void *final_norm_weight, *final_norm_bias, *head_weight;
  const float* rotary_table;
  int rotary_dim;
  RotaryPairs rotary_pairs;
  const void* x;
  void* logits;
  const int32_t* pages;
  int page_shift;  // a page has two to the power of it tokens
  const int32_t* length;
  Word* words;
  Places places;
  int splits, columns, tile_rows, row_bytes, slot_bytes, slots, under_way, part_rows;
  bool waits_for_memory;
};

// A product as a block computes it.
struct alignas(16) BlockProduct {
  RowPart rows;       // of the matrix, the block's
  int at_once;        // of them, between two sums
  int halves;         // 2: the rows of the matrix that are ffn further on are multiplied, too
  int depth;          // of the vector that is multiplied
  int pieces;         // of it that a group of warps multiplies, each as long as a slot is wide
  int input, output;  // where vectors lie, in words
};
// The last product. It is none of a layer's.
inline constexpr int kLogits = kProducts;

inline Places places_of(const DecodeTextShape& s, int splits) {
  const auto rounded = [](int64_t words) {
    return static_cast<int>((words + kLineWords - 1) / kLineWords * kLineWords);
  };
  const auto vector = [&](int64_t elements) { return rounded(places_of_elements(elements) / 2); };
  Places p{};
  p.search = kLineWords;  // after the number of the first tag
  p.x = p.search + rounded(static_cast<int64_t>(sizeof(WaitSearch) / sizeof(Word)));
  p.qkv = p.x + vector(s.hidden);
  p.attention = p.qkv + vector((s.heads + 2 * s.groups) * s.d);
  p.middle = p.attention + vector(s.heads * s.d);
  p.activated = p.middle + vector(s.hidden);
  p.splits = p.activated + vector(s.ffn);
  p.end = p.splits + rounded(s.heads * splits * (s.d + 2) / 2 *
                             static_cast<int64_t>(sizeof(Numbers) / sizeof(Word)));
  return p;
}
__device__ __forceinline__ Place* vector_of(const Parameters& p, int place) {
  return reinterpret_cast<Place*>(p.words + place);
}
__device__ __forceinline__ WaitSearch* search_of(const Parameters& p) {
  return reinterpret_cast<WaitSearch*>(p.words + p.places.search);
}

// Of the numbers that a warp norms: their mean, the sum of the squares of their distances from it,
// and how many they are.
struct alignas(16) WarpMoments {
  float mean, squares, numbers;
};

// A block's shared memory beside the slots of the ring.
struct SharedMemory {
  const DecodeTextLayer* layers;
  const BlockProduct* plan;  // [kLogits + 1]
  uint32_t* input;           // pairs: the vector that is multiplied
  float* products;  // [2, kMultipliers, part_rows], what each warp has of the products of all rows
  float* residual;  // [part_rows] of the block's rows
  float* biases;    // [part_rows] of the next product
  WarpMoments* moments;  // [2, kMultipliers]
  const int* chosen;     // [kSearched], by earlier calls
  uint64_t* complete;    // barriers [2]: the products are there
  uint64_t* taken;       // barriers [2]: they have been read
};

template <class T>
__device__ __forceinline__ float2 two_floats(uint32_t pair) {
  T lower, upper;
  lower.bits = static_cast<uint16_t>(pair);
  upper.bits = static_cast<uint16_t>(pair >> 16);
  return {to_float(lower), to_float(upper)};
}
template <class T>
__device__ __forceinline__ void eight_floats(const uint4& pairs, float (&x)[8]) {
  const float2 a = two_floats<T>(pairs.x), b = two_floats<T>(pairs.y);
  const float2 c = two_floats<T>(pairs.z), d = two_floats<T>(pairs.w);
  x[0] = a.x, x[1] = a.y, x[2] = b.x, x[3] = b.y;
  x[4] = c.x, x[5] = c.y, x[6] = d.x, x[7] = d.y;
}
template <class T>
__device__ __forceinline__ uint4 packed(const float (&x)[8]) {
  return {pack_two<T>(x[0], x[1]), pack_two<T>(x[2], x[3]), pack_two<T>(x[4], x[5]),
          pack_two<T>(x[6], x[7])};
}
__device__ __forceinline__ void multipliers_barrier() { barrier_of_threads<kMultiplierThreads>(); }
// An element of a vector; 0 if there is none.
template <class T>
__device__ __forceinline__ float element_now(const void* vector, int64_t at) {
  if (vector == nullptr) return 0;
  T x;
  x.bits = load_now(static_cast<const uint16_t*>(vector) + at);
  return to_float(x);
}
template <class T>
__device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

}  // namespace megatron::kernels::cuda::text
