#pragma once

#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/device/random.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

struct CachedBatch;

// Positions of the tokens of the stack, and the tokens that each of them sees. s is this rank's
// part of the sequence under context parallelism.
struct SequenceContext {
  Tensor rotary_table;        // [max s, rotary_dim] fp32, undefined without RoPE
  Tensor local_rotary_table;  // the same of layers with a window and rotary_base_local
  Tensor position_ids;        // [b, s] int64 for RoPE; undefined: consecutive
  Tensor document_starts;     // [b, s] int32: token i sees [start, i]; undefined: all before
  Tensor prefix_ends;         // [b, s] int32: token i also sees [i, end); undefined: none
  Tensor key_padding_mask;    // [b, s] bool: true hides a token; undefined: none is hidden
  Variable relative_bias;     // [n/tp, 2s - 1] fp32, added to scores by distance; undefined: none
};

// The inputs of cross-attention.
struct EncoderContext {
  Variable output;      // [se, b, h], [se/tp, b, h] with sequence parallelism
  Tensor padding_mask;  // [b, se] bool: as key_padding_mask
};

// Generation: s are tokens of several texts, b is 1.
struct DecodeContext {
  CachedBatch* cached = nullptr;  // null: not generation
  Tensor distance_bias;           // [n/tp, L] fp32: relative_bias by the key's distance back
};

// Base of the inputs of model-specific parts; such a part knows the derived type.
struct ModelContext {
  virtual ~ModelContext() = default;
};

// The inputs that all layers of a stack share in one forward pass of one microbatch. Recomputed
// regions keep copies.
struct ForwardContext {
  RandomState* random = nullptr;  // dropout keys; never null
  ContextParallel context_parallel;
  SequenceContext sequence;
  EncoderContext encoder;
  DecodeContext decode;
  ModelContext* model = nullptr;  // null: none; not copied by recomputed regions
  // Losses that layers add to the model's loss, each fp32 [] and a mean over the counted tokens.
  // Null: layers compute none.
  std::vector<Variable>* auxiliary_losses = nullptr;
};

}  // namespace megatron
