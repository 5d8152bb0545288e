#pragma once

#include "megatron/ops/rotary.h"
#include "megatron/transformer/layer_config.h"

namespace megatron {

// The frequencies of `dim` rotated channels: f_i = base^(-2 i / dim), i < ceil(dim / 2), then
// scaled:
//
//   linear    f / factor
//   Llama 3   wavelengths above original / low_freq_factor: f / factor; below original /
//             high_freq_factor: f; blended between (arXiv:2407.21783)
//   YaRN      f / factor for pairs that turn less than beta_slow times in the original length, f
//             for those that turn more than beta_fast times, blended between (arXiv:2309.00071,
//             sec. 3.2); cosines and sines times g(mscale) / g(mscale_all_dim), where
//             g(x) = 0.1 x ln(factor) + 1
//   dynamic   base times (factor length / original - factor + 1)^(dim / (dim - 2)) beyond the
//             original length (NTK-aware scaling, ibid., sec. 3.1)
//   LongRoPE  f / long_factor beyond the original length, otherwise f / short_factor
//             (arXiv:2402.13753); cosines and sines times sqrt(1 + ln(factor) / ln(original))
//
// `length` is the length of the longest sequence. An attention_factor above 0 replaces the factor
// of cosines and sines. Throws ShapeError if dim < 1.
RotaryFrequencies rotary_frequencies(int64_t dim, double base, const RopeScaling& scaling,
                                     int64_t length);

// The scaling of a model: --use-rope-scaling is Llama 3's for an original length of 8192.
RopeScaling rope_scaling_of(const PositionConfig& config);

// g(x) above: YaRN's factor of cosines and sines, whose square latent attention gives the scores.
double yarn_mscale(double factor, double mscale);

}  // namespace megatron
