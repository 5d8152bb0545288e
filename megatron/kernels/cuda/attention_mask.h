#pragma once

#include "megatron/kernels/attention.h"

namespace megatron::kernels::cuda {

// The dropout of attention as a tensor, for a library that cannot compute our masks itself:
// 1 where settings.dropout keeps a probability, else 0.
//
//   mask [b, heads, sq, sk]  out  fp16 | bf16, 16-byte aligned; sk a multiple of 8
//
// Under a causal mask without query_offset what no query sees is 0.
void write_dropout_mask(TensorView mask, const AttentionSettings& settings, Stream stream);

}  // namespace megatron::kernels::cuda
