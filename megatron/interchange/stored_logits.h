#pragma once

#include <cstdint>

#include "megatron/checkpoint/contents.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The logits [s, b, v] of a stored model in fp32 for tokens [b, s] (int64), on the CPU. A T5 gets
// them in both stacks, and is loaded as a whole. Layers of other models are loaded and run one at a
// time, so that at most one of them, or the embedding, is in memory. `config` is resolved and has
// padded_vocab_size; dropout is off. Throws FormatError when tensors are missing or do not fit.
Tensor stored_logits(const CheckpointContents& contents, const TransformerConfig& config,
                     const Tensor& tokens);

// The maximum memory of stored_logits() in bytes, without activations.
int64_t stored_logits_bytes(const CheckpointContents& contents);

}  // namespace megatron
