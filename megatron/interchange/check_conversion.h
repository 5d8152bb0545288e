#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/transformer/config.h"

// Verification of a converted checkpoint.
namespace megatron {

// Reads every tensor of `got` and compares it, byte for byte, with its source. Ignores padding rows
// of vocabularies. Throws InternalError.
void expect_same_tensors(const CheckpointContents& want, const CheckpointContents& got,
                         int64_t vocab_rows);

struct StoredModel {
  const CheckpointContents& contents;
  const TransformerConfig& config;  // resolved, with padded_vocab_size
};

// Computes the logits and the loss of a few tokens with both models, a layer at a time and in fp32,
// and describes the differences, one per line. With weights of the same dtype both must be
// bit-equal; rounding to another dtype changes them by some of its steps. Each loss is over the
// model's counted ids (TransformerConfig::counted_vocab_size), so the losses differ if the
// conversion removes trained rows. Throws InternalError if logits or losses differ too much. Skips
// the computation, with a message, if memory is short.
std::vector<std::string> compare_models(const StoredModel& source, const StoredModel& result);

}  // namespace megatron
