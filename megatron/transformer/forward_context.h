#pragma once

#include <cstdint>

#include "megatron/autograd/variable.h"
#include "megatron/device/random.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

struct CachedBatch;

// What the layers of a Retro share in one forward pass. Sequences are cut into l chunks, which have
// k neighbours each.
struct Neighbors {
  int64_t chunk_length = 0;  // m
  // [r, b l k, h] the embedded neighbours; column (sample l + chunk) k + neighbour
  Variable embedded;
  // [r k, b l, h] what the encoder made of them: the first layer that attends to neighbours sets it
  Variable encoded = {};
};

// What all layers of a stack share in one forward pass of one microbatch. Recomputed regions keep
// copies.
struct ForwardContext {
  RandomState* random = nullptr;  // dropout keys; never null
  Tensor rotary_table;            // [max s, rotary_dim / 2, 2] fp32, undefined without RoPE
  Tensor position_ids;            // [b, s] int64 for RoPE; undefined: consecutive
  Tensor document_starts;         // [b, s] int32: token i sees [start, i]; undefined: all before
  Tensor prefix_ends;             // [b, s] int32: token i also sees [i, end); undefined: none
  Tensor key_padding_mask;        // [b, s] bool: true hides a token; undefined: none is hidden
  Variable relative_bias;       // [n/tp, 2s - 1] fp32, added to scores by distance; undefined: none
  Tensor distance_bias;         // generation: [n/tp, L] fp32, the same by key's distance back
  Variable encoder_output;      // [se, b, h], [se/tp, b, h] with sequence parallelism
  Tensor encoder_padding_mask;  // [b, se] bool: as key_padding_mask, for cross-attention
  Neighbors* neighbors = nullptr;    // of Retro; null: no layer attends to any
  ContextParallel context_parallel;  // s is this rank's part of the sequence
  CachedBatch* cached = nullptr;     // generation: s are tokens of several texts, b is 1
};

}  // namespace megatron
