#include "tests/kernels/expert_problem.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace megatron {
namespace {

float activated_part(Activation activation, float x1, float x2) {
  switch (activation) {
    case Activation::kSwiglu:
      return x1 / (1 + std::exp(-x1)) * x2;
    case Activation::kSquaredRelu:
      return x1 > 0 ? x1 * x1 : 0;
    default:
      return 0.5f * x1 * (1 + std::erf(x1 / std::sqrt(2.0f)));  // kGeluErf
  }
}

}  // namespace

ExpertProblem::ExpertProblem(const ExpertCase& expert_case, DType dtype) : c(expert_case) {
  const int64_t own = c.experts - c.first_expert;
  const int64_t up = c.inner * (is_gated(c.activation) ? 2 : 1);
  const auto normal = [&](const Shape& shape, uint64_t seed, double deviation) {
    return random_normal(shape,
                         {.seed = seed, .stddev = static_cast<float>(deviation), .dtype = dtype});
  };
  x = normal({c.tokens, c.hidden}, 1, 1);
  weights = random_normal({c.tokens, c.k}, {.seed = 2, .mean = 0.5f, .stddev = 0.2f});
  fc1 = normal({own, up, c.hidden}, 3, 1 / std::sqrt(static_cast<double>(c.hidden)));
  fc2 = normal({own, c.hidden, c.inner}, 4, 1 / std::sqrt(static_cast<double>(c.inner)));
  if (c.has_bias) {
    fc1_bias = normal({own, up}, 5, 0.5);
    fc2_bias = normal({own, c.hidden}, 6, 0.5);
  }
  std::mt19937 random(7);
  std::vector<int32_t> all(static_cast<size_t>(c.experts)), choices;
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < c.tokens; ++t) {
    std::shuffle(all.begin(), all.end(), random);
    for (int64_t j = 0; j < c.k; ++j) {
      choices.push_back(choices.size() % 5 == 4 ? -1 : all[static_cast<size_t>(j)]);
    }
  }
  ids = tensor_of(choices, {c.tokens, c.k});
}

ExpertProblem ExpertProblem::on(Stream stream) const {
  ExpertProblem moved = *this;
  for (Tensor* one : {&moved.x, &moved.ids, &moved.weights, &moved.fc1, &moved.fc1_bias, &moved.fc2,
                      &moved.fc2_bias}) {
    if (one->defined()) *one = one->to(stream);
  }
  return moved;
}

kernels::ExpertLayers ExpertProblem::layers() const {
  const auto view = [](const Tensor& one) { return one.defined() ? one.view() : ConstView{}; };
  return {.fc1 = fc1.view(),
          .fc1_bias = view(fc1_bias),
          .fc2 = fc2.view(),
          .fc2_bias = view(fc2_bias),
          .activation = c.activation,
          .first_expert = c.first_expert,
          .weighs_input = c.weighs_input};
}

Tensor ExpertProblem::expected() const {
  const auto floats = [](const Tensor& one) {
    return one.defined() ? cast(one, DType::kFloat32) : Tensor();
  };
  const Tensor in = floats(x), w1 = floats(fc1), b1 = floats(fc1_bias);
  const Tensor w2 = floats(fc2), b2 = floats(fc2_bias);
  const auto at = [](const Tensor& one, int64_t i) {
    return one.defined() ? one.span<float>()[static_cast<size_t>(i)] : 0.0f;
  };
  const auto product = [&](const Tensor& w, int64_t row, const float* vector, int64_t k) {
    const float* const from = w.span<float>().data() + row * k;
    return std::inner_product(from, from + k, vector, 0.0f);
  };
  const int64_t up = w1.size(1);
  Tensor y = zeros(x.shape(), DType::kFloat32, Stream{});
  std::vector<float> inside(static_cast<size_t>(c.inner));
  for (int64_t slot = 0; slot < ids.numel(); ++slot) {
    const int64_t expert = ids.span<int32_t>()[static_cast<size_t>(slot)] - c.first_expert;
    if (expert < 0 || ids.span<int32_t>()[static_cast<size_t>(slot)] < 0) continue;
    const int64_t t = slot / c.k;
    const float weight = at(weights, slot);
    const float before = c.weighs_input ? weight : 1, behind = c.weighs_input ? 1 : weight;
    const auto wide = [&](int64_t i) {
      const int64_t row = expert * up + i;
      return before * product(w1, row, in.span<float>().data() + t * c.hidden, c.hidden) +
             at(b1, row);
    };
    for (int64_t i = 0; i < c.inner; ++i) {
      inside[static_cast<size_t>(i)] =
          behind * activated_part(c.activation, wide(i), up > c.inner ? wide(c.inner + i) : 0.0f);
    }
    for (int64_t i = 0; i < c.hidden; ++i) {
      const int64_t row = expert * c.hidden + i;
      y.span<float>()[static_cast<size_t>(t * c.hidden + i)] +=
          product(w2, row, inside.data(), c.inner) + behind * at(b2, row);
    }
  }
  return y;
}

void ExpertProblem::expect_output(const Tensor& y) const {
  const Tensor want = expected();
  const double bound = x.dtype() == DType::kFloat16 ? 2e-3 : 1.5e-2;
  for (int64_t t = 0; t < c.tokens; ++t) {
    double difference = 0, size = 0;
    for (int64_t i = t * c.hidden; i < (t + 1) * c.hidden; ++i) {
      const double expected_one = element(want, i), error = element(y, i) - expected_one;
      difference += error * error;
      size += expected_one * expected_one;
    }
    EXPECT_LE(std::sqrt(difference), bound * std::sqrt(size)) << c.name << ", token " << t;
  }
}

std::vector<ExpertCase> expert_cases() {
  return {{"one_token", 1, 8, 64, 96, 64},
          {"two_experts", 1, 2, 8, 544, 160, Activation::kSquaredRelu},
          {"eight_tokens", 8, 3, 16, 288, 64, Activation::kSwiglu, true},
          {"other_experts", 7, 3, 8, 64, 32, Activation::kGeluErf, true, false, 5},
          {"weighed_input", 13, 2, 9, 160, 96, Activation::kSwiglu, true, true},
          {"many_tokens", 33, 2, 4, 96, 32},
          {"one_expert", 50, 1, 1, 64, 32, Activation::kSquaredRelu},  // in two passes
          {"full_experts", 45, 4, 5, 64, 64, Activation::kSwiglu, true}};
}

}  // namespace megatron
