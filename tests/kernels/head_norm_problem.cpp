#include "tests/kernels/head_norm_problem.h"

#include <cmath>
#include <vector>

namespace megatron {
namespace {

constexpr int64_t kTablePositions = 40;

ConstView view_if_defined(const Tensor& one) {
  return one.defined() ? ConstView(one.view()) : ConstView{};
}

}  // namespace

std::vector<Tensor> head_norm_tensors(const HeadNormCase& c, DType dtype) {
  const auto normal = [&](const Shape& shape, uint64_t seed, float mean) {
    return random_normal(shape, {.seed = seed, .mean = mean, .dtype = dtype});
  };
  std::vector<Tensor> all(7);
  all[0] = normal({c.s, c.b, (c.heads + 2 * c.groups) * c.d}, 1, 0.5f);
  all[1] = normal({c.d}, 2, 1);
  all[2] = normal({c.d}, 3, 1);
  if (c.has_bias) {
    all[3] = normal({c.d}, 4, 0);
    all[4] = normal({c.d}, 5, 0);
  }
  if (c.dim > 0) {
    std::vector<float> table;
    for (int64_t i = 0; i < kTablePositions * c.dim; ++i) {
      const double angle = 0.3 * static_cast<double>(i / c.dim * (1 + i % (c.dim / 2)));
      table.push_back(
          static_cast<float>(i % c.dim < c.dim / 2 ? std::cos(angle) : std::sin(angle)));
    }
    all[5] = tensor_of(table, {kTablePositions, c.dim});
  }
  if (c.has_ids) all[6] = random_ids({c.b, c.s}, kTablePositions, 6);
  return all;
}

kernels::HeadNorms norms_of(const std::vector<Tensor>& tensors) {
  return {.q_weight = view_if_defined(tensors[1]),
          .q_bias = view_if_defined(tensors[3]),
          .k_weight = view_if_defined(tensors[2]),
          .k_bias = view_if_defined(tensors[4]),
          .weight_offset = 1,
          .epsilon = 1e-3f};
}

kernels::HeadRotation rotation_of(const std::vector<Tensor>& tensors, const HeadNormCase& c) {
  return {.table = view_if_defined(tensors[5]),
          .position_ids = view_if_defined(tensors[6]),
          .offset = 3,
          .pairs = c.pairs};
}

std::vector<HeadNormCase> head_norm_cases() {
  using kernels::RotaryPairs;
  return {{"qwen", 5, 1, 8, 2, 128, 128, RotaryPairs::kHalves, false, true},
          {"part", 3, 2, 3, 3, 64, 32, RotaryPairs::kHalves, true},
          {"interleaved", 7, 2, 4, 1, 32, 24, RotaryPairs::kInterleaved, true, true},
          {"not_rotated", 2, 3, 2, 1, 256},
          {"few_channels", 4, 1, 5, 5, 8, 8, RotaryPairs::kInterleaved}};
}

}  // namespace megatron
