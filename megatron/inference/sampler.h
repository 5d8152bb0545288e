#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "megatron/kernels/draw.h"

namespace megatron {

// Sampling parameters, applied in this order: logit_bias, penalties, temperature, top_k, top_p,
// min_p. Those of the first group are Megatron-LM's.
struct SamplingOptions {
  double temperature = 1.0;  // > 0; logits are divided by it
  int64_t top_k = 0;         // 0: off; 1: greedy, at any temperature
  double top_p = 0.0;        // 0: off; nucleus (Holtzman et al. 2019, arXiv:1904.09751), in (0, 1]
  double top_p_decay = 0.0;  // 0: off; top_p is multiplied by it after every step
  double top_p_bound = 0.0;  // 0: none; top_p never decays below it

  double min_p = 0.0;  // a token needs this share of the largest probability; in [0, 1]
  // For every token that occurs in the text: divides a positive logit, multiplies a negative one
  // (Keskar et al. 2019, arXiv:1909.05858). 1: off
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;   // subtracted once from a token that was already drawn
  double frequency_penalty = 0.0;  // subtracted once per earlier draw of the token
  std::vector<std::pair<int32_t, double>> logit_bias = {};  // added to a token's logit
};

// Error message for logits that are NaN.
inline constexpr const char* kNotANumber =
    "the model's probabilities are not numbers: some of its weights are NaN or infinite; load an "
    "earlier checkpoint";

// top_p of step `step` of a request, 0-based, after decay.
double top_p_at(const SamplingOptions& options, int64_t step);

// Applies logit_bias and the penalties.
//   tokens  the text so far; those from prompt_length on were drawn
void adjust_logits(std::span<float> logits, const SamplingOptions& options,
                   std::span<const int32_t> tokens, int64_t prompt_length);

// The parameters of kernels/draw.h for a step's token among vocab_size ids; without logit_bias.
kernels::Draw draw_of(const SamplingOptions& options, double top_p, double uniform,
                      int64_t vocab_size, int64_t prompt_length);

// The index drawn at `uniform` in [0, 1) from a row of logits after adjust_logits(), as by
// kernels::draw_tokens(). Throws Error for NaN.
//   logits  fp32, one per token
int64_t sample(std::span<const float> logits, const SamplingOptions& options, double top_p,
               double uniform);

// The uniform random number of a step of a row; independent of device and batching.
double sampling_uniform(uint64_t seed, int64_t row, int64_t step);

// log(softmax(logits))[token], in fp64 sums over all logits.
double log_probability(std::span<const float> logits, int64_t token);

}  // namespace megatron
