#include "megatron/ops/rotary.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"

namespace megatron {
namespace {

// Llama 3's piecewise scaling of one frequency.
double llama3_scaled(double frequency, double factor) {
  constexpr double kOriginalLength = 8192;
  constexpr double kLowFactor = 1;   // wavelengths above original / low are scaled fully
  constexpr double kHighFactor = 4;  // wavelengths below original / high stay
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > kOriginalLength / kLowFactor) return frequency / factor;
  if (wavelength < kOriginalLength / kHighFactor) return frequency;
  const double keep = (kOriginalLength / wavelength - kLowFactor) / (kHighFactor - kLowFactor);
  return (1 - keep) * frequency / factor + keep * frequency;
}

void rotate(Tensor& qkv, int64_t heads, int64_t groups, const Tensor& table,
            const RotaryPositions& positions, kernels::RotaryPairs pairs, bool inverse) {
  // The key of a group follows its queries: together they are the heads of one view.
  kernels::HeadsView x = kernels::split_qkv(qkv.view(), heads, groups).q;
  x.heads = heads + groups;
  x.heads_per_group = heads / groups + 1;
  const ConstView ids =
      positions.position_ids.defined() ? positions.position_ids.view() : ConstView{};
  kernels::rotary_inplace(x, table.view(), ids, positions.offset, pairs, inverse, qkv.stream());
}

}  // namespace

Tensor rotary_table(int64_t num_positions, const RotaryOptions& options) {
  if (options.dim <= 0) {
    throw ShapeError(
        fmt::format("rotary: {} channels must be at least 1; raise --rotary-percent", options.dim));
  }
  const int64_t half = (options.dim + 1) / 2;
  std::vector<float> frequencies;
  for (int64_t i = 0; i < half; ++i) {
    const double power = -2.0 * static_cast<double>(i) / static_cast<double>(options.dim);
    const double frequency = std::pow(options.base, power);
    frequencies.push_back(static_cast<float>(
        options.llama3_factor == 1 ? frequency : llama3_scaled(frequency, options.llama3_factor)));
  }
  std::vector<float> table;
  table.reserve(static_cast<size_t>(num_positions * 2 * half));
  for (int64_t p = 0; p < num_positions; ++p) {
    // An fp32 product, as in the reference: its rounding at large positions is part of the angle.
    const auto position =
        static_cast<float>(p) * static_cast<float>(1 / options.interpolation_factor);
    for (const float f : frequencies) {
      table.push_back(static_cast<float>(std::cos(static_cast<double>(position * f))));
    }
    for (const float f : frequencies) {
      table.push_back(static_cast<float>(std::sin(static_cast<double>(position * f))));
    }
  }
  return tensor_of(table, {num_positions, 2 * half});
}

Variable rotary_inplace(const Variable& qkv, int64_t heads, int64_t groups, const Tensor& table,
                        const RotaryPositions& positions, kernels::RotaryPairs pairs) {
  const TraceRange range("rotary_inplace", qkv.stream());
  Tensor y = qkv.data();
  rotate(y, heads, groups, table, positions, pairs, false);
  return record("rotary_inplace", y, {qkv},
                [heads, groups, table, positions, pairs](const Tensor& dy, const Wants&) -> Grads {
                  // Another op may hold dy, too.
                  Tensor dx = dy.is_sole_owner() ? dy : copied(dy);
                  rotate(dx, heads, groups, table, positions, pairs, true);
                  return {dx};
                });
}

}  // namespace megatron
