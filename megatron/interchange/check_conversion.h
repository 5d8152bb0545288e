#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/transformer/config.h"

// What a conversion of checkpoints checks once it has written.
namespace megatron {

// Reads every tensor of `got` and compares it, byte for byte, with what it was made of. Of
// vocabularies only so many rows count: the rest is padding. Throws InternalError.
void expect_same_tensors(const CheckpointContents& want, const CheckpointContents& got,
                         int64_t vocab_rows);

struct StoredModel {
  const CheckpointContents& contents;
  const TransformerConfig& config;  // resolved, with padded_vocab_size
};

// Computes the logits and the loss of a few tokens with both models, a layer at a time and in fp32,
// and describes the differences, a line each. Of weights of one dtype both must be the same bits;
// rounding to another dtype moves them by some of its steps. The losses are those of the ids that
// count in each model (TransformerConfig::counted_vocab_size), so that they differ where the
// conversion removes rows that were trained. Throws InternalError where logits or losses differ too
// much. Computes nothing and says so where memory is short.
std::vector<std::string> compare_models(const StoredModel& source, const StoredModel& result);

}  // namespace megatron
