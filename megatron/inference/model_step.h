#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/kernels/draw.h"
#include "megatron/models/gpt/gpt_model.h"

namespace megatron {

// A model and the ranks that share it, tensor and pipeline parallel; other groups are not used.
struct InferenceModel {
  const GptModel& chunk;          // this rank's part
  ParallelContext parallel = {};  // the default: one rank has all of it
};

// Whether this rank draws tokens: the first rank of the last stage.
bool draws(const InferenceModel& model);

// Gives all ranks the x of the rank that draws. x is on the host.
void share(const InferenceModel& model, Tensor& x);
void share(const InferenceModel& model, std::vector<double>& values);

// Runs tokens [b, s] through this rank's stage, between the neighbours': [s, b, h], which is the
// whole model's on the last stage alone.
Variable run_stages(const InferenceModel& model, const GptInput& input, CachedBatch* cached);

// Logits [r, 1, v] of hidden [r, 1, h] on the rank that draws. Undefined on the other ranks; those
// of the last stage take part.
Tensor gathered_logits(const InferenceModel& model, const Tensor& hidden);
// Logits [r, 1, v] in fp32 on the host: [r, v]. Undefined if they are.
Tensor on_host(const Tensor& logits);

// Draws a token for each row of logits [r, 1, v] (kernels/draw.h).
//   tokens [at least r] int32    draws  r kernels::Draw, in any dtype
void draw_tokens(Tensor& tokens, const Tensor& logits, const Tensor& draws);
// The same for draws on the host; waits for the tokens.
std::vector<int32_t> drawn_tokens(const Tensor& logits, std::span<const kernels::Draw> draws);

// Log-probabilities of ids [b, n] at the first n positions of hidden [s, b, h]: [n, b] fp32 on the
// host of the rank that draws, a chunk of positions at a time. Undefined on the other ranks.
Tensor forced_log_probabilities(const InferenceModel& model, const Tensor& hidden,
                                const Tensor& ids);

// Throws ConfigError naming the first id that is not in a vocabulary.
void check_ids(std::span<const int32_t> ids, int64_t vocab_size);
// Throws ConfigError if `length` tokens, some of them new, are more than the model's positions.
void check_length(int64_t length, int64_t new_tokens, const TransformerConfig& config);
// The most tokens of a text; nothing limits a model with ALiBi or a relative position bias.
int64_t max_positions(const TransformerConfig& config);

}  // namespace megatron
