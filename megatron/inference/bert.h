#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/inference/request.h"
#include "megatron/inference/text_rows.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/parallel/parallel_context.h"

// BERT inference: loss, classification, embeddings, masked-token prediction. Every rank of the
// model calls each function with the same arguments and gets the same result. Throws ConfigError
// for ids that are not in the vocabulary, and for texts of unequal lengths or longer than the
// model's positions.
namespace megatron {

// A model and its tensor- and pipeline-parallel ranks; other groups are not used.
struct BertInference {
  const BertModel& chunk;         // this rank's part
  ParallelContext parallel = {};  // the default: one rank has all of it
};

// A batch of texts of equal length.
struct BertTexts {
  IdRows ids;                  // [b, s]
  IdRows token_types = {};     // [b, s] 0: first segment, 1: second segment; empty: all 0
  IdRows attention_mask = {};  // [b, s] 1: visible, 0: padding; empty: all visible
};

// Labels of a batch.
struct BertLabels {
  IdRows words;                             // [b, s] masked-token labels; -100: ignored
  std::vector<int32_t> next_sentence = {};  // [b] 0: the second segment follows the first, 1: it
                                            // does not; empty: no such loss
};

// The loss as transformers defines it: the mean negative log-likelihood of the labels that count
// plus, if next_sentence is given, that of the next-sentence labels.
double bert_loss(const BertInference& model, const BertTexts& texts, const BertLabels& labels);

// How the logits of a classification head become probabilities.
enum class ClassKind {
  kExclusive,    // exclusive classes: softmax; sigmoid for a single class
  kIndependent,  // independent labels: sigmoid of each
};

// The probability of each class for each text, by the model's classification head: [b][classes].
std::vector<std::vector<double>> class_probabilities(const BertInference& model,
                                                     const BertTexts& texts, ClassKind kind);

// The embedding of each text [b, h], over its visible tokens, which come before the padding.
// Compat: kMeanInner is Megatron-LM's text embedding for Retro, kMean that of
// sentence-transformers.
std::vector<float> pooled_states(const BertInference& model, const BertTexts& texts,
                                 Pooling pooling);

struct LikelyWord {
  int32_t id = 0;
  double probability = 0;
};

// The k most probable ids below vocab_size, best first, at each position of one text.
std::vector<std::vector<LikelyWord>> likely_words(const BertInference& model,
                                                  std::span<const int32_t> ids,
                                                  std::span<const int64_t> positions, int64_t k,
                                                  int64_t vocab_size);

}  // namespace megatron
