#pragma once

#include <cstdint>
#include <string>

#include "megatron/checkpoint/contents.h"
#include "megatron/transformer/config.h"

// What a conversion of checkpoints checks once it has written.
namespace megatron {

// Reads every tensor of `got` and compares it, byte for byte, with what it was made of. Of
// vocabularies only so many rows count: the rest is padding. Throws InternalError.
void expect_same_tensors(const CheckpointContents& want, const CheckpointContents& got,
                         int64_t vocab_rows);

// Computes the logits of a few tokens with both models, a layer at a time and in fp32, and tells
// what came of it. They must be the same bits where the weights have one dtype; rounding to another
// moves them by some of its steps. Throws InternalError. Where memory is short it says so instead.
std::string compare_logits(const CheckpointContents& source, const TransformerConfig& source_config,
                           const CheckpointContents& result, const TransformerConfig& result_config,
                           int64_t vocab_rows);

}  // namespace megatron
