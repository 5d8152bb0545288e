#include "megatron/inference/sampler.h"

#include <algorithm>
#include <cmath>

#include "megatron/core/error.h"
#include "megatron/device/philox.h"

namespace megatron {
void adjust_logits(std::span<float> logits, const SamplingOptions& options,
                   std::span<const int32_t> tokens, int64_t prompt_length) {
  for (const auto& [id, bias] : options.logit_bias) {
    if (static_cast<size_t>(id) < logits.size()) {
      logits[static_cast<size_t>(id)] += static_cast<float>(bias);
    }
  }
  kernels::cpu::apply_penalties(logits, draw_of(options, 0, 0, 0, prompt_length), tokens);
}

double top_p_at(const SamplingOptions& options, int64_t step) {
  if (options.top_p <= 0 || options.top_p_decay <= 0) return options.top_p;
  const double decayed = options.top_p * std::pow(options.top_p_decay, static_cast<double>(step));
  return std::max(decayed, options.top_p_bound);
}

kernels::Draw draw_of(const SamplingOptions& options, double top_p, double uniform,
                      int64_t vocab_size, int64_t prompt_length) {
  const int64_t top_k = std::min(options.top_k, vocab_size);
  return {.temperature = options.temperature,
          .top_p = top_p,
          .min_p = options.min_p,
          .uniform = uniform,
          .repetition_penalty = options.repetition_penalty,
          .presence_penalty = options.presence_penalty,
          .frequency_penalty = options.frequency_penalty,
          .prompt_length = static_cast<int32_t>(prompt_length),
          .top_k = static_cast<int32_t>(top_k == 1 && options.top_k > 1 ? 0 : top_k),
          .vocab_size = static_cast<int32_t>(vocab_size)};
}

int64_t sample(std::span<const float> logits, const SamplingOptions& options, double top_p,
               double uniform) {
  invariant(!logits.empty(), "there are logits to sample from");
  const auto vocab_size = static_cast<int64_t>(logits.size());
  const int32_t token =
      kernels::cpu::drawn_token(logits, draw_of(options, top_p, uniform, vocab_size, 0));
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

double log_probability(std::span<const float> logits, int64_t token) {
  return logits[static_cast<size_t>(token)] - kernels::cpu::log_sum_exp(logits);
}

}  // namespace megatron
