#pragma once

#include <cstdint>
#include <span>

namespace megatron {

// How the next token is chosen from the logits. The rules are Megatron-LM's.
struct SamplingOptions {
  double temperature = 1.0;  // > 0; logits are divided by it
  int64_t top_k = 0;         // 0: all; 1: the most probable token, whatever the temperature
  double top_p = 0.0;        // 0: off; nucleus (Holtzman et al. 2019, arXiv:1904.09751), in (0, 1]
  double top_p_decay = 0.0;  // 0: off; top_p is multiplied by it after every step
  double top_p_bound = 0.0;  // 0: none; top_p never decays below it
};

// The error of logits that are NaN.
inline constexpr const char* kNotANumber =
    "the model's probabilities are not numbers: some of its weights are NaN or infinite; load an "
    "earlier checkpoint";

// top_p of step `step` of a request, 0-based, after decay.
double top_p_at(const SamplingOptions& options, int64_t step);

// The index drawn from one row of logits. With `top_k` > 1 the k largest compete (and what ties
// with the k-th); else with `top_p` > 0 the most probable tokens up to the one whose sum crosses
// top_p; else all. The draw is the inverse of the cumulative distribution, in index order, at
// `uniform` in [0, 1). Ties of the largest go to the lowest index.
//   logits  fp32, one per token; NaN is refused with Error
int64_t sample(std::span<const float> logits, const SamplingOptions& options, double top_p,
               double uniform);

// The uniform number of a step of a row of a request: the same on every device and for every
// batching.
double sampling_uniform(uint64_t seed, int64_t row, int64_t step);

// log(softmax(logits))[token], in fp64 sums over all logits.
double log_probability(std::span<const float> logits, int64_t token);

}  // namespace megatron
