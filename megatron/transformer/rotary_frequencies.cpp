#include "megatron/transformer/rotary_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "megatron/core/error.h"

namespace megatron {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

double llama3_scaled(double frequency, const RopeScaling& scaling) {
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = kTwoPi / frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  const double keep = (original / wavelength - scaling.low_freq_factor) /
                      (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - keep) * frequency / scaling.factor + keep * frequency;
}

// The pairs between which YaRN blends.
struct YarnRange {
  double low;
  double high;

  YarnRange(int64_t dim, double base, const RopeScaling& scaling) {
    // The pair, as a real number, that turns this often in the original length.
    const auto pair_of = [&](double turns) {
      const auto original = static_cast<double>(scaling.original_max_position_embeddings);
      return static_cast<double>(dim) * std::log(original / (turns * kTwoPi)) /
             (2 * std::log(base));
    };
    low = pair_of(scaling.beta_fast);
    high = pair_of(scaling.beta_slow);
    if (scaling.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(dim - 1));
    if (low == high) high += 0.001;
  }

  // 0 where a frequency stays, 1 where it is divided.
  double divided(int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  }
};

double scaled_base(int64_t dim, double base, const RopeScaling& scaling, int64_t length) {
  const int64_t original = scaling.original_max_position_embeddings;
  if (scaling.type != RopeScalingType::kDynamic || length <= original) return base;
  const double stretch =
      scaling.factor * static_cast<double>(length) / static_cast<double>(original) -
      (scaling.factor - 1);
  return base * std::pow(stretch, static_cast<double>(dim) / static_cast<double>(dim - 2));
}

double attention_factor(const RopeScaling& scaling) {
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  if (scaling.type == RopeScalingType::kYarn) {
    return yarn_mscale(scaling.factor, scaling.mscale) /
           yarn_mscale(scaling.factor, scaling.mscale_all_dim);
  }
  if (scaling.type == RopeScalingType::kLongRope && scaling.factor > 1) {
    const auto original = static_cast<double>(scaling.original_max_position_embeddings);
    return std::sqrt(1 + std::log(scaling.factor) / std::log(original));
  }
  return 1.0;
}

}  // namespace

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

RopeScaling rope_scaling_of(const PositionConfig& config) {
  if (!config.use_rope_scaling) return config.rope_scaling;
  return {.type = RopeScalingType::kLlama3,
          .factor = config.rope_scaling_factor,
          .original_max_position_embeddings = 8192,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .short_factor = {},
          .long_factor = {}};
}

RotaryFrequencies rotary_frequencies(int64_t dim, double base, const RopeScaling& scaling,
                                     int64_t length) {
  if (dim <= 0) {
    throw ShapeError(
        fmt::format("rotary: {} channels must be at least 1; raise --rotary-percent", dim));
  }
  base = scaled_base(dim, base, scaling, length);
  const YarnRange yarn(dim, base, scaling);
  const std::vector<double>& divisors = length > scaling.original_max_position_embeddings
                                            ? scaling.long_factor
                                            : scaling.short_factor;
  RotaryFrequencies result;
  for (int64_t i = 0; i < (dim + 1) / 2; ++i) {
    const double f = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    const auto scaled = [&] {
      switch (scaling.type) {
        case RopeScalingType::kLinear:
          return f / scaling.factor;
        case RopeScalingType::kLlama3:
          return scaling.factor == 1 ? f : llama3_scaled(f, scaling);
        case RopeScalingType::kYarn:
          return f / scaling.factor * yarn.divided(i) + f * (1 - yarn.divided(i));
        case RopeScalingType::kLongRope:
          return f / divisors.at(static_cast<size_t>(i));
        case RopeScalingType::kNone:
        case RopeScalingType::kDynamic:
          return f;
      }
      throw InternalError("rotary_frequencies: unknown scaling");
    };
    result.frequencies.push_back(static_cast<float>(scaled()));
  }
  result.magnitude = static_cast<float>(attention_factor(scaling));
  return result;
}

}  // namespace megatron
