#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/inference/text_rows.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/parallel/parallel_context.h"

// What a trained BERT says of texts. Every rank of the model calls each function with the same
// arguments and gets the same result. Throws ConfigError for ids that are not in the vocabulary,
// and for texts that are longer than the model's positions or not all as long as each other.
namespace megatron {

// A model and the ranks that share it, tensor and pipeline parallel; other groups are not used.
struct BertInference {
  const BertModel& chunk;         // this rank's part
  ParallelContext parallel = {};  // the default: one rank has all of it
};

// Texts of one length as a BERT reads them.
struct BertTexts {
  IdRows ids;                  // [b, s]
  IdRows token_types = {};     // [b, s] 0: of the first part, 1: of the second; empty: all 0
  IdRows attention_mask = {};  // [b, s] 1: seen, 0: padding; empty: all are seen
};

// What the texts should be.
struct BertLabels {
  IdRows words;                             // [b, s]; -100: does not count
  std::vector<int32_t> next_sentence = {};  // [b] 0: the second part follows the first, 1: it does
                                            // not; empty: not asked
};

// The loss as transformers defines it: the mean negative log-likelihood of the words that count
// and, where next_sentence is given, that of the order of the parts.
double bert_loss(const BertInference& model, const BertTexts& texts, const BertLabels& labels);

// What the classes of a model mean.
enum class ClassKind {
  kOneOfAll,  // a text has one of them; a single one is right or wrong
  kMarks,     // each is right or wrong by itself
};

// The probability of each class for each text, by the model's classification head: [b][classes].
std::vector<std::vector<double>> class_probabilities(const BertInference& model,
                                                     const BertTexts& texts, ClassKind kind);

// The means [b, h] of the final states of each text over its tokens but the first and the last seen
// one, which are [CLS] and [SEP]. Compat: Megatron-LM's embedding of texts for Retro.
std::vector<float> mean_states(const BertInference& model, const BertTexts& texts);

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
