#include "megatron/ops/bias_activation.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "megatron/ops/elementwise.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

double gelu_erf(double x, double root) { return 0.5 * x * (1 + std::erf(x / root)); }

double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

// The definitions of kernels/activation.h, in fp64. x2 is the second half, when gated.
double defined(Activation activation, double x, double x2) {
  switch (activation) {
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    case Activation::kGeluErf:
      return gelu_erf(x, std::sqrt(2));
    case Activation::kGeluOnnx:
      return gelu_erf(x, 1.41421);
    case Activation::kSquaredRelu:
      return x > 0 ? x * x : 0;
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kSwiglu:
      return x / (1 + std::exp(-x)) * x2;
    case Activation::kGeglu:
      return x * gelu_erf(x2, std::sqrt(2));
    case Activation::kLiglu:
      return x * x2;
    case Activation::kReglu:
      return x2 > 0 ? x * x2 : 0;
    case Activation::kSwigluSecond:
      return x * x2 / (1 + std::exp(-x2));
    case Activation::kGegluTanh:
      return x * gelu_tanh(x2);
    case Activation::kGegluTanhFirst:
      return gelu_tanh(x) * x2;
    case Activation::kQuickGeglu:
      return x / (1 + std::exp(-1.702 * x)) * x2;
    case Activation::kClampedQuickGeglu: {
      const double gate = std::min(x, 7.0);
      return gate / (1 + std::exp(-1.702 * gate)) * (1 + std::clamp(x2, -7.0, 7.0));
    }
  }
  return NAN;
}

Tensor expected(const std::vector<Tensor>& in, Activation activation) {
  const int64_t width = in[0].size(-1);
  const int64_t f = is_gated(activation) ? width / 2 : width;
  Tensor y(in[0].shape().with(-1, f), DType::kFloat32, Stream{});
  const auto biased = [&](int64_t row, int64_t k) {
    return element(in[0], row * width + k) + (in.size() > 1 ? element(in[1], k) : 0);
  };
  for (int64_t i = 0; i < y.numel(); ++i) {
    const int64_t row = i / f;
    const int64_t k = i % f;
    const double second = is_gated(activation) ? biased(row, f + k) : 0;
    y.span<float>()[static_cast<size_t>(i)] =
        static_cast<float>(defined(activation, biased(row, k), second));
  }
  return y;
}

// Values at least 0.1 away from a kink of the activation, so that differences are sound: ReLU's at
// 0, and those of the clamp at -7 and 7, beyond which are a tenth of the values.
Tensor away_from_kinks(const Shape& shape, Activation activation, uint64_t seed) {
  const bool is_clamped = activation == Activation::kClampedQuickGeglu;
  Tensor x = random_normal(shape, {.seed = seed, .stddev = is_clamped ? 4.5f : 1.5f});
  for (float& value : x.span<float>()) {
    const float kink = std::abs(value) > 3.5f ? std::copysign(7.0f, value) : 0.0f;
    value += std::copysign(0.1f, value - (is_clamped ? kink : 0.0f));
  }
  return x;
}

class BiasActivationTest : public testing::TestWithParam<Activation> {
 protected:
  OpCase make_case(const Shape& y_shape, bool has_bias) const {
    const Activation activation = GetParam();
    const int64_t width = y_shape[-1] * (is_gated(activation) ? 2 : 1);
    OpCase c{.name = "bias_activation " + y_shape.str(),
             .inputs = {away_from_kinks(y_shape.with(-1, width), activation, 1)},
             .op =
                 [=](const auto& in) {
                   return bias_activation(in[0], has_bias ? in[1] : Variable(), activation);
                 },
             .expected = [=](const auto& in) { return expected(in, activation); },
             .terms = std::max<int64_t>(4, y_shape.numel()),
             .step = 0x1p-6};
    if (has_bias) c.inputs.push_back(random_normal({width}, {.seed = 2, .stddev = 0.01f}));
    return c;
  }
};

TEST_P(BiasActivationTest, FollowsItsDefinition) {
  for (const Shape& shape : {Shape{2, 3, 4}, Shape{3, 1}, Shape{1, 5}, Shape{2, 19}}) {
    check(make_case(shape, true));
    check(make_case(shape, false));
  }
}

TEST_P(BiasActivationTest, FollowsItsDefinitionOnRowsOfManyTiles) {
  OpCase c = make_case({3, 1283}, true);
  c.check_differences = false;
  check(c);
}

TEST_P(BiasActivationTest, MayOverwriteItsInputInTheBackwardPass) {
  OpCase c = make_case({3, 37}, true);
  const OpFunction plain = c.op;
  c.reference = plain;  // of leaves, whose memory is not the op's to reuse
  c.op = [plain](const auto& in) { return plain({scale(in[0], 1), in[1]}); };
  c.check_differences = false;
  check(c);
}

TEST_P(BiasActivationTest, EmptyBatch) {
  OpCase c = make_case({0, 4}, true);
  c.check_differences = false;
  check(c);
}

INSTANTIATE_TEST_SUITE_P(Activations, BiasActivationTest,
                         testing::Values(Activation::kGeluTanh, Activation::kGeluErf,
                                         Activation::kGeluOnnx, Activation::kSquaredRelu,
                                         Activation::kRelu, Activation::kSwiglu, Activation::kGeglu,
                                         Activation::kLiglu, Activation::kReglu,
                                         Activation::kSwigluSecond, Activation::kGegluTanh,
                                         Activation::kGegluTanhFirst, Activation::kQuickGeglu,
                                         Activation::kClampedQuickGeglu));

TEST(BiasActivationErrorTest, RefusesAnOddWidthForGatedActivations) {
  const Variable x(random_normal({2, 5}, {.seed = 1}));
  const std::string message =
      message_of<ShapeError>([&] { bias_activation(x, Variable(), Activation::kSwiglu); });
  EXPECT_NE(message.find("5 is odd"), std::string::npos) << message;
}

}  // namespace
}  // namespace megatron
