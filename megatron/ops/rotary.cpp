#include "megatron/ops/rotary.h"

#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/kernels/rotary.h"

namespace megatron {
namespace {

// Llama 3.1's change of frequencies: long waves are stretched by the factor, short ones are kept,
// those between are blended. The original context of 8192 tokens sets the limits.
double llama3_frequency(double frequency, double factor) {
  constexpr double kOriginalLength = 8192;
  constexpr double kLowFactor = 1;
  constexpr double kHighFactor = 4;
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > kOriginalLength / kLowFactor) return frequency / factor;
  if (wavelength < kOriginalLength / kHighFactor) return frequency;
  const double blend = (kOriginalLength / wavelength - kLowFactor) / (kHighFactor - kLowFactor);
  return (1 - blend) * frequency / factor + blend * frequency;
}

void rotate_queries_and_keys(Tensor& qkv, const Tensor& table, const RotaryOptions& options,
                             bool inverse) {
  const auto [q, k, v] =
      kernels::split_qkv(qkv.view(), options.num_heads, options.num_query_groups);
  const kernels::RotarySettings settings{.interleaved = options.interleaved,
                                         .inverse = inverse,
                                         .position_offset = options.position_offset};
  const ConstView positions =
      options.position_ids.defined() ? std::as_const(options.position_ids).view() : ConstView{};
  kernels::rotate(q, table.view(), positions, settings, qkv.stream());
  kernels::rotate(k, table.view(), positions, settings, qkv.stream());
}

void expect_positions(const Tensor& position_ids, int64_t num_positions) {
  if (!position_ids.defined()) return;
  for (const int64_t position : position_ids.span<int64_t>()) {
    if (position >= 0 && position < num_positions) continue;
    throw ShapeError("rotary_inplace: position " + std::to_string(position) +
                     " is outside the table of " + std::to_string(num_positions));
  }
}

}  // namespace

Tensor rotary_table(int64_t num_positions, const RotaryTableOptions& options, Stream stream) {
  const int64_t pairs = (options.dim + 1) / 2;
  std::vector<float> frequencies;
  for (int64_t i = 0; i < pairs; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(options.dim);
    double frequency = std::pow(options.base, exponent);
    if (options.llama3_scaling_factor > 0) {
      frequency = llama3_frequency(frequency, options.llama3_scaling_factor);
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  Tensor table({num_positions, pairs, 2}, DType::kFloat32, stream);
  float* out = table.span<float>().data();
  for (int64_t p = 0; p < num_positions; ++p) {
    // fp32 products, as the reference computes them.
    const float position =
        static_cast<float>(static_cast<double>(p) / options.interpolation_factor);
    for (const float frequency : frequencies) {
      const float angle = position * frequency;
      *out++ = std::cos(angle);
      *out++ = std::sin(angle);
    }
  }
  return table;
}

Variable rotary_inplace(const Variable& qkv, const Tensor& table, const RotaryOptions& options) {
  expect_positions(options.position_ids, table.size(0));
  Tensor y = qkv.data();
  rotate_queries_and_keys(y, table, options, false);
  return record("rotary_inplace", y, {qkv},
                [table, options](const Tensor& dy, const Wants&) -> Grads {
                  Tensor dx = copied(dy);
                  rotate_queries_and_keys(dx, table, options, true);
                  return {dx};
                });
}

}  // namespace megatron
