#include "megatron/inference/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/philox.h"

namespace megatron {
void adjust_logits(std::span<float> logits, const SamplingOptions& options,
                   std::span<const int32_t> tokens, int64_t prompt_length) {
  const auto in_range = [&](int32_t id) { return static_cast<size_t>(id) < logits.size(); };
  for (const auto& [id, bias] : options.logit_bias) {
    if (in_range(id)) logits[static_cast<size_t>(id)] += static_cast<float>(bias);
  }
  if (options.repetition_penalty != 1.0) {
    const std::set<int32_t> present(tokens.begin(), tokens.end());
    const auto penalty = static_cast<float>(options.repetition_penalty);
    for (const int32_t id : present) {
      if (!in_range(id)) continue;
      float& logit = logits[static_cast<size_t>(id)];
      logit = logit > 0 ? logit / penalty : logit * penalty;
    }
  }
  if (options.presence_penalty == 0 && options.frequency_penalty == 0) return;
  std::map<int32_t, int64_t> counts;
  for (const int32_t id : tokens.subspan(static_cast<size_t>(prompt_length))) ++counts[id];
  for (const auto& [id, count] : counts) {
    if (!in_range(id)) continue;
    logits[static_cast<size_t>(id)] -= static_cast<float>(
        options.presence_penalty + options.frequency_penalty * static_cast<double>(count));
  }
}

double top_p_at(const SamplingOptions& options, int64_t step) {
  if (options.top_p <= 0 || options.top_p_decay <= 0) return options.top_p;
  const double decayed = options.top_p * std::pow(options.top_p_decay, static_cast<double>(step));
  return std::max(decayed, options.top_p_bound);
}

kernels::Draw draw_of(const SamplingOptions& options, double top_p, double uniform,
                      int64_t vocab_size) {
  const int64_t top_k = std::min(options.top_k, vocab_size);
  return {.temperature = options.temperature,
          .top_p = top_p,
          .min_p = options.min_p,
          .uniform = uniform,
          .top_k = static_cast<int32_t>(top_k == 1 && options.top_k > 1 ? 0 : top_k),
          .vocab_size = static_cast<int32_t>(vocab_size)};
}

int64_t sample(std::span<const float> logits, const SamplingOptions& options, double top_p,
               double uniform) {
  invariant(!logits.empty(), "there are logits to sample from");
  const auto vocab_size = static_cast<int64_t>(logits.size());
  const int32_t token =
      kernels::cpu::drawn_token(logits, draw_of(options, top_p, uniform, vocab_size));
  if (token == kernels::kNoToken) throw Error(kNotANumber);
  return token;
}

double sampling_uniform(uint64_t seed, int64_t row, int64_t step) {
  const auto words = philox({static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32),
                             static_cast<uint32_t>(row), static_cast<uint32_t>(row >> 32)},
                            mixed_key(seed, 0));
  const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

double log_sum_exp(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

double log_probability(std::span<const float> logits, int64_t token) {
  return logits[static_cast<size_t>(token)] - log_sum_exp(logits);
}

}  // namespace megatron
