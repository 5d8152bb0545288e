#include "megatron/ops/norm.h"

#include <algorithm>
#include <cmath>

#include "tests/ops/op_case.h"

namespace megatron {
namespace {

enum class Kind { kLayerNorm, kRmsNorm };

// The definition, in fp64.
Tensor norm_defined(const std::vector<Tensor>& in, Kind kind, NormOptions options) {
  const int64_t cols = in[0].size(-1);
  Tensor y = empty_like(in[0]);
  for (int64_t first = 0; first < y.numel(); first += cols) {
    double mean = 0;
    for (int64_t k = 0; k < cols; ++k) mean += element(in[0], first + k) / double(cols);
    if (kind == Kind::kRmsNorm) mean = 0;
    double variance = 0;
    for (int64_t k = 0; k < cols; ++k) {
      variance += std::pow(element(in[0], first + k) - mean, 2) / double(cols);
    }
    for (int64_t k = 0; k < cols; ++k) {
      const double xhat =
          (element(in[0], first + k) - mean) / std::sqrt(variance + double(options.epsilon));
      const double w = element(in[1], k) + (options.one_plus_weight ? 1 : 0);
      const double b = kind == Kind::kLayerNorm ? element(in[2], k) : 0;
      y.span<float>()[static_cast<size_t>(first + k)] = static_cast<float>(xhat * w + b);
    }
  }
  return y;
}

OpCase norm_case(Kind kind, const Shape& shape, NormOptions options) {
  const Shape h = {shape[-1]};
  std::vector<Tensor> inputs = {random_normal(shape, {.seed = 1, .mean = 0.5f}),
                                random_normal(h, {.seed = 2, .mean = 1}),
                                random_normal(h, {.seed = 3})};
  if (kind == Kind::kRmsNorm) inputs.pop_back();
  return {.name = (kind == Kind::kRmsNorm ? "rms_norm " : "layer_norm ") + shape.str(),
          .inputs = inputs,
          .op =
              [=](const auto& in) {
                return kind == Kind::kRmsNorm ? rms_norm(in[0], in[1], options)
                                              : layer_norm(in[0], in[1], in[2], options);
              },
          .expected = [=](const auto& in) { return norm_defined(in, kind, options); },
          .terms = std::max<int64_t>(shape[-1], 4)};
}

class NormTest : public testing::TestWithParam<Kind> {};

TEST_P(NormTest, FollowsItsDefinition) {
  for (const Shape& shape : {Shape{3, 2, 8}, Shape{2, 5}, Shape{1, 3}, Shape{5, 1, 17}}) {
    check(norm_case(GetParam(), shape, {}));
    check(norm_case(GetParam(), shape, {.epsilon = 1e-2f, .one_plus_weight = true}));
  }
}

TEST_P(NormTest, FollowsItsDefinitionOnRowsOfManyTiles) {
  OpCase c = norm_case(GetParam(), {5, 1283}, {});
  c.check_differences = false;
  check(c);
}

TEST_P(NormTest, TakesAnFp32ResidualInto16Bits) {
  OpCase c = norm_case(GetParam(), {4, 16}, {});
  c.fp32_inputs = {0};
  check(c);
  const Tensor w = random_normal({16}, {.seed = 1, .dtype = DType::kBFloat16});
  const Variable x(random_normal({4, 16}, {.seed = 1}));
  const Variable y = GetParam() == Kind::kRmsNorm ? rms_norm(x, Variable(w), {})
                                                  : layer_norm(x, Variable(w), Variable(w), {});
  EXPECT_EQ(y.dtype(), DType::kBFloat16);
}

TEST_P(NormTest, EmptyBatchHasZeroParameterGradients) {
  OpCase c = norm_case(GetParam(), {0, 3, 4}, {});
  c.check_differences = false;
  check(c);
}

TEST_P(NormTest, RefusesAWeightOfAnotherSize) {
  const Variable x(random_normal({2, 4}, {.seed = 1}));
  const Variable w(random_normal({5}, {.seed = 1}));
  const std::string message = message_of<ShapeError>(
      [&] { GetParam() == Kind::kRmsNorm ? rms_norm(x, w, {}) : layer_norm(x, w, w, {}); });
  EXPECT_NE(message.find("weight has shape [5], expected [4]"), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(Kinds, NormTest, testing::Values(Kind::kLayerNorm, Kind::kRmsNorm));

TEST(LayerNormTest, SurvivesALargeMean) {
  const Variable x(random_normal({1, 64}, {.seed = 1, .mean = 10000}));
  const Variable one(full({64}, 1, DType::kFloat32, Stream{}));
  const Variable zero(full({64}, 0, DType::kFloat32, Stream{}));
  const Tensor y = layer_norm(x, one, zero, {}).data();
  double squares = 0;
  for (int64_t k = 0; k < 64; ++k) squares += std::pow(element(y, k), 2) / 64;
  EXPECT_NEAR(squares, 1, 1e-3);
}

TEST(RmsNormTest, RoundsTheNormalisedValueBeforeTheWeight) {
  const Tensor x = tensor_of(std::vector<BFloat16>{1.0f, 3.0f}, {2});
  const Tensor w = tensor_of(std::vector<BFloat16>{1.5f, 1.5f}, {2});
  const Tensor y = rms_norm(Variable(x), Variable(w), {.epsilon = 0}).data();
  const float normalised = BFloat16(3.0f / std::sqrt(5.0f));
  EXPECT_EQ(element(y, 1), static_cast<double>(static_cast<float>(BFloat16(normalised * 1.5f))));
}

}  // namespace
}  // namespace megatron
