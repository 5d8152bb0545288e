#include "megatron/ops/residual_norm.h"

#include <algorithm>
#include <cmath>

#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

struct Options {
  bool has_bias = true;
  bool is_rms_norm = false;
  float dropout = 0;
  NormOptions norm = {};
};

// Dropout of a sample and position that are not 0.
DropoutKey key_of(const Options& options) {
  return {.key = 7, .first_sample = 5, .probability = options.dropout, .first_row = 3};
}

// In: branch, residual, weight and, where there are such, norm bias and bias.
ResidualSum sum_of(const std::vector<Variable>& in, const Options& options) {
  return {.branch = in[0],
          .bias = options.has_bias ? in.back() : Variable(),
          .residual = in[1],
          .key = key_of(options)};
}
Variable norm_bias_of(const std::vector<Variable>& in, const Options& options) {
  return options.is_rms_norm ? Variable() : in[3];
}

NormedStream fused(const std::vector<Variable>& in, const Options& options) {
  return residual_norm(sum_of(in, options), in[2], norm_bias_of(in, options), options.norm);
}

NormedStream in_plain_ops(const std::vector<Variable>& in, const Options& options) {
  const ResidualSum sum = sum_of(in, options);
  const Variable x = bias_dropout_add(sum.branch, sum.bias, sum.residual, sum.key);
  return {x, options.is_rms_norm ? rms_norm(x, in[2], options.norm)
                                 : layer_norm(x, in[2], norm_bias_of(in, options), options.norm)};
}

// Both outputs count.
Variable both(const NormedStream& out) { return add(out.x, out.y); }

// Multiples of 1/8: sums of a few, also doubled ones, need no rounding in 16 bits. So 16-bit
// results differ from fp32 ones by the rounding of what follows the sum alone.
Tensor eighths(const Shape& shape, uint64_t seed) {
  Tensor x = random_normal(shape, {.seed = seed});
  for (float& value : x.span<float>()) value = std::round(std::clamp(value, -2.0f, 2.0f) * 8) / 8;
  return x;
}

OpCase case_of(const Shape& shape, const Options& options) {
  const Shape h = {shape[-1]};
  std::vector<Tensor> inputs = {eighths(shape, 1), eighths(shape, 2),
                                random_normal(h, {.seed = 3, .mean = 1})};
  if (!options.is_rms_norm) inputs.push_back(random_normal(h, {.seed = 4}));
  if (options.has_bias) inputs.push_back(eighths(h, 5));
  return {.name = "residual_norm " + shape.str(),
          .inputs = inputs,
          .op = [=](const auto& in) { return both(fused(in, options)); },
          .reference = [=](const auto& in) { return both(in_plain_ops(in, options)); },
          // The gradient of bias adds up rows of sums of 2 h and a few terms.
          .terms = std::max<int64_t>(3 * shape.numel(), 4)};
}

std::vector<Options> every_kind() {
  std::vector<Options> all;
  for (const bool has_bias : {true, false}) {
    for (const bool is_rms_norm : {true, false}) {
      for (const float dropout : {0.0f, 0.5f}) {
        all.push_back({has_bias, is_rms_norm, dropout, {}});
        all.push_back({has_bias, is_rms_norm, dropout, {1e-2f, true}});
      }
    }
  }
  return all;
}

TEST(ResidualNormTest, IsTheSumAndItsNorm) {
  for (const Options& options : every_kind()) {
    for (const Shape& shape : {Shape{3, 2, 8}, Shape{2, 1, 5}}) check(case_of(shape, options));
  }
}

TEST(ResidualNormTest, IsTheSumAndItsNormOnLongRows) {
  for (const Options& options : every_kind()) {
    OpCase c = case_of({4, 3, 1283}, options);
    c.check_differences = false;
    c.dtypes = {};
    check(c);
  }
}

TEST(ResidualNormTest, OneOutputAloneHasGradients) {
  for (const bool uses_x : {true, false}) {
    OpCase c = case_of({3, 2, 8}, {.dropout = 0.5f});
    const auto pick = [=](const NormedStream& out) { return uses_x ? out.x : out.y; };
    c.op = [=](const auto& in) { return pick(fused(in, {.dropout = 0.5f})); };
    c.reference = nullptr;
    if (!uses_x) check(c);
    const std::vector<Tensor>& inputs = c.inputs;
    std::vector<Variable> got, want;
    for (const Tensor& input : inputs) {
      got.push_back(Variable::leaf(input));
      want.push_back(Variable::leaf(input));
    }
    const Tensor dy = random_normal({3, 2, 8}, {.seed = 9});
    backward(pick(fused(got, {.dropout = 0.5f})), dy);
    backward(pick(in_plain_ops(want, {.dropout = 0.5f})), dy);
    for (const size_t i : {0u, 1u, 4u}) {
      expect_close(got[i].grad(), want[i].grad(), tolerance_of(DType::kFloat32).for_terms(48));
    }
  }
}

TEST(ResidualNormTest, AnFp32StreamTakes16BitBranches) {
  for (const float dropout : {0.0f, 0.5f}) {
    OpCase c = case_of({3, 2, 16}, {.dropout = dropout});
    c.fp32_inputs = {1};
    c.check_differences = false;
    check(c);
  }
  const auto narrow = [](const Shape& shape) {
    return Variable(random_normal(shape, {.seed = 1, .dtype = DType::kBFloat16}));
  };
  const Variable stream(random_normal({2, 1, 8}, {.seed = 2}));
  const NormedStream out = residual_norm({.branch = narrow({2, 1, 8}), .residual = stream},
                                         narrow({8}), narrow({8}), {});
  EXPECT_EQ(out.x.dtype(), DType::kFloat32);
  EXPECT_EQ(out.y.dtype(), DType::kBFloat16);
}

TEST(ResidualNormTest, WithoutABranchIsTheNormAlone) {
  const Variable x = Variable::leaf(random_normal({3, 2, 8}, {.seed = 1}));
  const Variable weight = Variable::leaf(random_normal({8}, {.seed = 2}));
  const NormedStream out = residual_norm({.residual = x}, weight, Variable(), {});
  expect_identical(out.x.data(), x.data());
  expect_identical(out.y.data(), rms_norm(x, weight, {}).data());
  expect_identical(computed({.residual = x}).data(), x.data());
}

TEST(ResidualNormTest, ABranchInPartsIsTheirSum) {
  const Shape shape{3, 2, 8};
  const Tensor parts = eighths({5, 3, 2, 8}, 1);  // sums are exact
  Tensor sum = zeros(shape, DType::kFloat32, Stream{});
  for (int64_t i = 0; i < sum.numel(); ++i) {
    float& total = sum.span<float>()[static_cast<size_t>(i)];
    for (int64_t part = 0; part < 5; ++part) {
      total += std::as_const(parts).span<float>()[static_cast<size_t>(part * sum.numel() + i)];
    }
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Variable residual(random_normal(shape, {.seed = 2, .dtype = dtype}));
    const Variable weight(random_normal({8}, {.seed = 3, .dtype = dtype}));
    const Variable bias(random_normal({8}, {.seed = 4, .dtype = dtype}));
    const ResidualSum in_parts{Variable(parts), bias, residual, key_of({.dropout = 0.5f})};
    const ResidualSum whole{Variable(cast(sum, dtype)), bias, residual, in_parts.key};
    const NormedStream got = residual_norm(in_parts, weight, bias, {});
    const NormedStream want = residual_norm(whole, weight, bias, {});
    expect_identical(got.x.data(), want.x.data());
    expect_identical(got.y.data(), want.y.data());
    expect_identical(computed(in_parts).data(), want.x.data());
  }
}

TEST(ResidualNormTest, NoTokens) {
  for (const bool is_rms_norm : {true, false}) {
    OpCase c = case_of({0, 2, 8}, {.is_rms_norm = is_rms_norm});
    c.check_differences = false;
    check(c);
  }
}

TEST(ResidualNormTest, RefusesShapesThatDoNotFit) {
  const auto of = [](const Shape& shape) { return Variable(random_normal(shape, {.seed = 1})); };
  EXPECT_EQ(
      message_of<ShapeError>([&] {
        residual_norm({.branch = of({2, 1, 4}), .residual = of({2, 2, 4})}, of({4}), of({4}), {});
      }),
      "residual_norm: branch has shape [2, 1, 4], expected [2, 2, 4]");
  EXPECT_EQ(message_of<ShapeError>([&] {
              residual_norm({.branch = of({2, 1, 4}), .bias = of({3}), .residual = of({2, 1, 4})},
                            of({4}), of({4}), {});
            }),
            "residual_norm: bias has shape [3], expected [4]");
}

}  // namespace
}  // namespace megatron
