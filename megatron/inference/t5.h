#pragma once

#include <cstdint>

#include "megatron/inference/model_step.h"
#include "megatron/inference/text_rows.h"

// What a trained T5 says of labels. Engine (engine.h) lets it write texts.
namespace megatron {

// Texts of one length as the encoder reads them.
struct T5Texts {
  IdRows ids;                  // [b, se]
  IdRows attention_mask = {};  // [b, se] 1: seen, 0: padding; empty: all are seen
};

// The loss as transformers defines it: the mean negative log-likelihood of the labels [b, sd] that
// count. The decoder reads them one place later, behind `start`, which also stands for those that
// do not count. Every rank of the model calls it and gets the same. Throws ConfigError for ids that
// are not in the vocabulary, and for texts that are longer than the model's positions or not all as
// long as each other. REQUIRES: the model is a T5.
double t5_loss(const InferenceModel& model, const T5Texts& texts, const IdRows& labels,
               int32_t start);

}  // namespace megatron
