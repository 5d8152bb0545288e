#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "megatron/kernels/draw.h"
#include "megatron/models/bert/bert_model.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/t5/t5_model.h"
#include "megatron/transformer/kv_cache.h"

namespace megatron {

// A GPT, a T5 or a BERT, which has embeddings only, and its tensor- and pipeline-parallel ranks;
// other groups are not used.
struct InferenceModel {
  // This rank's part of a model; by default one rank has all of it.
  // NOLINTNEXTLINE(google-explicit-constructor): on one rank a model is all there is
  InferenceModel(const GptModel& the_gpt, ParallelContext the_parallel = {})
      : chunk(&the_gpt), gpt(&the_gpt), parallel(std::move(the_parallel)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): on one rank a model is all there is
  InferenceModel(const T5Model& the_t5, ParallelContext the_parallel = {})
      : chunk(&the_t5), t5(&the_t5), parallel(std::move(the_parallel)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): on one rank a model is all there is
  InferenceModel(const BertModel& the_bert, ParallelContext the_parallel = {})
      : chunk(&the_bert), bert(&the_bert), parallel(std::move(the_parallel)) {}

  const TransformerConfig& config() const { return chunk->config(); }
  Stream stream() const { return chunk->stream(); }

  const Model* chunk;               // this rank's part
  const GptModel* gpt = nullptr;    // either a GPT ...
  const T5Model* t5 = nullptr;      // ... or a T5 ...
  const BertModel* bert = nullptr;  // ... or a BERT
  ParallelContext parallel;
  KvCacheType kv_cache = KvCacheType::kModel;
};

// True on the rank that draws tokens: the first rank of the last stage.
bool draws(const InferenceModel& model);

// Broadcasts x, on the host, from the rank that draws.
void share(const InferenceModel& model, Tensor& x);
void share(const InferenceModel& model, std::vector<double>& values);

// Receives, runs tokens [b, s] of a GPT through this rank's stage, and sends: [s, b, h], the
// model's output on the last stage only.
Variable run_stages(const InferenceModel& model, const ModelInput& input, CachedBatch* cached);

// Logits [r, 1, v] of hidden [r, 1, h] on the rank that draws. Undefined on the other ranks; all
// ranks of the last stage call it.
Tensor gathered_logits(const InferenceModel& model, const Tensor& hidden);
// Copies logits [r, 1, v] to the host as fp32 [r, v]. Undefined if `logits` is.
Tensor on_host(const Tensor& logits);

// Drawn tokens, on the host.
struct DrawnTokens {
  std::vector<int32_t> tokens;  // kernels::kNoToken where logits are NaN
  // kernels::kMaxLogProbabilities for each of them; empty if none were requested.
  std::vector<kernels::TokenLogProbability> probabilities = {};

  std::span<const kernels::TokenLogProbability> probabilities_of(size_t row) const {
    if (probabilities.empty()) return {};
    return std::span(probabilities)
        .subspan(row * kernels::kMaxLogProbabilities, kernels::kMaxLogProbabilities);
  }
};
// True if a draw asks for log-probabilities.
bool wants_probabilities(std::span<const kernels::Draw> draws);
// A buffer for the log-probabilities of `rows` rows: [rows, bytes] uint8.
Tensor probabilities_of_rows(int64_t rows, Stream stream);

// Draws a token for each row of logits [r, 1, v] (kernels/draw.h).
//   tokens [at least r] int32    probabilities  of at least r rows, or undefined
//   draws  r kernels::Draw, in any dtype
void draw_tokens(Tensor& tokens, Tensor& probabilities, const Tensor& logits, const Tensor& draws,
                 const kernels::DrawTexts& texts);
// The same for draws on the host; waits for the tokens.
DrawnTokens drawn_tokens(const Tensor& logits, std::span<const kernels::Draw> draws,
                         const kernels::DrawTexts& texts);

// Log-probabilities of ids [b, n] at the first n positions of hidden [s, b, h]: [n, b] fp32 on the
// host of the rank that draws, a chunk of positions at a time. Undefined on the other ranks.
//
// num_top > 0: appends to `top`, on that rank, the num_top most probable tokens for each of the n *
// b ids; an id among them has the same log-probability in both. REQUIRES: b is 1.
Tensor forced_log_probabilities(const InferenceModel& model, const Tensor& hidden,
                                const Tensor& ids, int64_t num_top = 0,
                                std::vector<kernels::TokenLogProbability>* top = nullptr);

// Throws ConfigError naming the first id that is not in a vocabulary.
void check_ids(std::span<const int32_t> ids, int64_t vocab_size);
// Throws ConfigError if `length` tokens, some of them new, are more than the model's positions.
void check_length(int64_t length, int64_t new_tokens, const TransformerConfig& config);
// Maximum tokens of a text; 2^24 for a model with ALiBi or a relative position bias, which is not
// limited by its positions.
int64_t max_positions(const TransformerConfig& config);

}  // namespace megatron
