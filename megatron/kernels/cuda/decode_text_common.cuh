#pragma once

#include "megatron/kernels/cuda/decode_text_division.h"
#include "megatron/kernels/cuda/decode_text_waits.h"
#include "megatron/kernels/cuda/exchange.cuh"
#include "megatron/kernels/cuda/expert_choice.cuh"
#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/cuda/weight_ring.cuh"
#include "megatron/kernels/decode_text.h"

// Shared declarations of the kernel decode_text: parameters, workspace and shared memory.
namespace megatron::kernels::cuda::text {

// Unit of the workspace. Vectors are aligned to cache lines.
using Word = uint32_t;
inline constexpr int kLineWords = 32;

// Workspace layout: offsets in words.
struct WorkspaceOffsets {
  int search, x, qkv, attention, middle, activated, router, splits, end;
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
  int page_shift;  // log2 of the tokens of a page
  const int32_t* length;
  Word* words;
  WorkspaceOffsets offsets;
  int splits, columns, tile_rows, row_bytes, slot_bytes, slots, in_flight, part_rows;
  bool waits_for_memory;
  ChoiceRule choice;  // without the layer's bias
  WeightRule weights;
};

// A block's part of a matrix-vector product.
struct alignas(16) BlockProduct {
  RowRange rows;      // the block's rows of the matrix
  int at_once;        // rows between two reductions
  int halves;         // 2 if gated: also multiplies the rows that are ffn further on
  int depth;          // length of the input vector
  int pieces;         // slot-wide pieces of the input for each group of warps
  int input, output;  // workspace offsets
};
// Index of a router's product, between proj and fc1, and of the product with the output layer,
// after those of a layer.
inline constexpr int kRouter = kProducts, kLogits = kRouter + 1;

// The products in the order of their use. Parameters are in constant memory: a loop keeps two
// registers.
struct ProductOrder {
  const Parameters& p;
  int layer = 0, product = kQkv;

  __device__ __forceinline__ bool has_experts() const { return p.shape.experts > 0; }
  __device__ __forceinline__ void advance() {
    if (product == kFc2) {
      product = ++layer == static_cast<int>(p.shape.layers) ? kLogits : kQkv;
    } else if (product == kProj && has_experts()) {
      product = kRouter;
    } else {
      product = product == kRouter ? kFc1 : product + 1;
    }
  }
  // The logits have no layer.
  __device__ __forceinline__ int layer_or_first() const { return product == kLogits ? 0 : layer; }
};

inline WorkspaceOffsets workspace_offsets(const DecodeTextShape& s, int splits) {
  const auto rounded = [](int64_t words) {
    return static_cast<int>((words + kLineWords - 1) / kLineWords * kLineWords);
  };
  const auto vector = [&](int64_t elements) { return rounded(padded_size(elements) / 2); };
  WorkspaceOffsets p{};
  p.search = kLineWords;  // the first word holds the last tag
  p.x = p.search + rounded(static_cast<int64_t>(sizeof(WaitSearch) / sizeof(Word)));
  p.qkv = p.x + vector(s.hidden);
  p.attention = p.qkv + vector((s.heads + 2 * s.groups) * s.d);
  p.middle = p.attention + vector(s.heads * s.d);
  p.activated = p.middle + vector(s.hidden);
  p.router = p.activated + vector(inner_of(s));
  p.splits = p.router + rounded(padded_tags(s.experts) *
                                static_cast<int64_t>(sizeof(TaggedNumber) / sizeof(Word)));
  p.end = p.splits + rounded(s.heads * splits * (s.d + 2) / 2 *
                             static_cast<int64_t>(sizeof(TaggedPair) / sizeof(Word)));
  return p;
}
__device__ __forceinline__ FlaggedElement* vector_at(const Parameters& p, int offset) {
  return reinterpret_cast<FlaggedElement*>(p.words + offset);
}
__device__ __forceinline__ WaitSearch* search_of(const Parameters& p) {
  return reinterpret_cast<WaitSearch*>(p.words + p.offsets.search);
}

// A logit of the router.
__device__ __forceinline__ TaggedNumber* router_logit_at(const Parameters& p, int expert) {
  return reinterpret_cast<TaggedNumber*>(p.words + p.offsets.router) + padded_tag(expert);
}

// Moments of a warp's elements of a normed vector: mean, sum of squared deviations, count.
struct alignas(16) WarpMoments {
  float mean, squares, count;
};

// A block's shared memory, except for the ring's slots.
struct SharedMemory {
  const DecodeTextLayer* layers;
  const BlockProduct* plan;  // [kLogits + 1]
  uint32_t* input;           // the input vector, in pairs of elements
  float* products;           // [2, kMmaWarps, part_rows]: split-K partial products of each warp
  float* residual;           // [part_rows]: residual stream of the block's rows
  float* biases;             // [part_rows]: biases of the next product
  WarpMoments* moments;      // [2, kMmaWarps]
  ChosenExperts* chosen;
  const int* tuned;          // [kSearched]: values of the WaitSearch
  uint64_t* products_full;   // barriers [2]: products are complete
  uint64_t* products_empty;  // barriers [2]: products have been read
  uint64_t* router_started;  // barrier: the router's input has arrived
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
__device__ __forceinline__ void mma_barrier() { barrier_of_threads<kMmaThreads>(); }
// Loads an element of a vector without reordering; 0 if the vector is null.
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
