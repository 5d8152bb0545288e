#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "megatron/kernels/draw.h"

namespace megatron {

// How the next token is chosen from the logits. The first group of rules is Megatron-LM's. They
// apply in this order: logit_bias, penalties, temperature, top_k, top_p, min_p.
struct SamplingOptions {
  double temperature = 1.0;  // > 0; logits are divided by it
  int64_t top_k = 0;         // 0: all; 1: the most probable token, whatever the temperature
  double top_p = 0.0;        // 0: off; nucleus (Holtzman et al. 2019, arXiv:1904.09751), in (0, 1]
  double top_p_decay = 0.0;  // 0: off; top_p is multiplied by it after every step
  double top_p_bound = 0.0;  // 0: none; top_p never decays below it

  double min_p = 0.0;  // a token needs this share of the largest probability; in [0, 1]
  // Of every token that the text has: a positive logit is divided by it, a negative one is
  // multiplied (Keskar et al. 2019, arXiv:1909.05858). 1: off
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;   // subtracted once from a token that was drawn before
  double frequency_penalty = 0.0;  // subtracted as often as the token was drawn
  std::vector<std::pair<int32_t, double>> logit_bias = {};  // added to a token's logit
};

// The error of logits that are NaN.
inline constexpr const char* kNotANumber =
    "the model's probabilities are not numbers: some of its weights are NaN or infinite; load an "
    "earlier checkpoint";

// top_p of step `step` of a request, 0-based, after decay.
double top_p_at(const SamplingOptions& options, int64_t step);

// Applies logit_bias and the penalties.
//   tokens  the text so far; those from prompt_length on were drawn
void adjust_logits(std::span<float> logits, const SamplingOptions& options,
                   std::span<const int32_t> tokens, int64_t prompt_length);

// How the kernels draw a step's token among vocab_size ids, without logit_bias (kernels/draw.h).
kernels::Draw draw_of(const SamplingOptions& options, double top_p, double uniform,
                      int64_t vocab_size, int64_t prompt_length);

// The index drawn from one row of logits, which adjust_logits() has seen, at `uniform` in [0, 1):
// as kernels::draw_tokens() does. NaN is refused with Error.
//   logits  fp32, one per token
int64_t sample(std::span<const float> logits, const SamplingOptions& options, double top_p,
               double uniform);

// The uniform number of a step of a row of a request: the same on every device and for every
// batching.
double sampling_uniform(uint64_t seed, int64_t row, int64_t step);

// log(softmax(logits))[token], in fp64 sums over all logits.
double log_probability(std::span<const float> logits, int64_t token);

}  // namespace megatron
