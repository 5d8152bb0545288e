#pragma once

#include <cstdint>

#include "megatron/device/random.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

class KvCache;

// What all layers share in one forward pass of one microbatch. Copied into recomputed regions.
struct ForwardContext {
  RandomState* random = nullptr;     // dropout keys; never null
  Tensor rotary_table;               // [max s, rotary_dim / 2, 2] fp32, undefined without RoPE
  Tensor position_ids;               // [b, s] int64 for RoPE; undefined: consecutive
  Tensor document_starts;            // [b, s] int32: token i sees [start, i]; undefined: all before
  ContextParallel context_parallel;  // s is this rank's part; document_starts are [2, b, s / 2]
  KvCache* cache = nullptr;          // generation: keys and values of the tokens before these
};

}  // namespace megatron
