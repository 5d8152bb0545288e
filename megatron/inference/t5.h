#pragma once

#include <cstdint>

#include "megatron/inference/model_step.h"
#include "megatron/inference/text_rows.h"

// The loss of a T5. Engine (engine.h) generates with it.
namespace megatron {

// Encoder inputs of equal length.
struct T5Texts {
  IdRows ids;                  // [b, se]
  IdRows attention_mask = {};  // [b, se] 1: visible, 0: padding; empty: all visible
};

// The loss as transformers defines it: the mean negative log-likelihood of the labels [b, sd] that
// count. The decoder reads the labels shifted right by one, after `start`, which also replaces
// ignored labels. Every rank of the model calls it and gets the same result. Throws ConfigError for
// ids that are not in the vocabulary, and for texts of unequal lengths or longer than the model's
// positions. REQUIRES: the model is a T5.
double t5_loss(const InferenceModel& model, const T5Texts& texts, const IdRows& labels,
               int32_t start);

}  // namespace megatron
