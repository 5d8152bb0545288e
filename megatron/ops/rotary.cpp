#include "megatron/ops/rotary.h"

#include <cmath>
#include <vector>

#include "megatron/device/trace.h"

namespace megatron {
namespace {

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

Tensor rotary_table(int64_t num_positions, const RotaryFrequencies& rotary) {
  const int64_t dim = 2 * static_cast<int64_t>(rotary.frequencies.size());
  std::vector<float> table;
  table.reserve(static_cast<size_t>(num_positions * dim));
  const auto append = [&](double value) {
    table.push_back(static_cast<float>(value) * rotary.magnitude);
  };
  for (int64_t p = 0; p < num_positions; ++p) {
    // An fp32 product, as in the reference: its rounding at large positions is part of the angle.
    const auto position =
        static_cast<float>(p) * static_cast<float>(1 / rotary.interpolation_factor);
    for (const float f : rotary.frequencies) append(std::cos(static_cast<double>(position * f)));
    for (const float f : rotary.frequencies) append(std::sin(static_cast<double>(position * f)));
  }
  return tensor_of(table, {num_positions, dim});
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
