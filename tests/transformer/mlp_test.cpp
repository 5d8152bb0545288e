#include "megatron/transformer/mlp.h"

#include <cmath>

#include "tests/transformer/tiny_stack.h"

namespace megatron {
namespace {

double gelu_erf(double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); }
double silu(double x) { return x / (1 + std::exp(-x)); }

struct Gate {
  Activation activation;
  double (*function)(double first, double second);
};

class GatedMlpTest : public testing::TestWithParam<Gate> {};

// fc2(gate(fc1 x)) in plain loops.
TEST_P(GatedMlpTest, IsAsDefined) {
  constexpr int64_t kHidden = 6;
  constexpr int64_t kFfn = 10;
  TransformerConfig c = tiny_config();
  c.hidden_size = kHidden;
  c.ffn_hidden_size = kFfn;
  c.activation = GetParam().activation;
  const Mlp mlp(c, "mlp", {}, Stream{});
  initialize(mlp, 4);
  const std::vector<Parameter> parameters = named_parameters(mlp);
  ASSERT_EQ(parameters.size(), 4U);
  const Tensor fc1 = parameters[0].variable.data();
  Tensor bias = parameters[1].variable.data();
  const Tensor fc2 = parameters[2].variable.data();
  ASSERT_EQ(fc1.shape(), (Shape{2 * kFfn, kHidden}));
  for (int64_t i = 0; i < 2 * kFfn; ++i) {
    bias.span<float>()[static_cast<size_t>(i)] = 0.1f * static_cast<float>(i - 9);
  }

  const Tensor x = random_normal({3, 1, kHidden}, {.seed = 1});
  RandomState random(1);
  ForwardContext context;
  context.random = &random;
  const BiasedOutput got = mlp.forward(Variable(x), context);
  Tensor want({3, 1, kHidden}, DType::kFloat32, Stream{});
  for (int64_t row = 0; row < 3; ++row) {
    const auto wide = [&](int64_t i) {
      double sum = element(bias, i);
      for (int64_t k = 0; k < kHidden; ++k) {
        sum += element(x, row * kHidden + k) * element(fc1, i * kHidden + k);
      }
      return sum;
    };
    for (int64_t out = 0; out < kHidden; ++out) {
      double sum = 0;
      for (int64_t i = 0; i < kFfn; ++i) {
        sum += GetParam().function(wide(i), wide(kFfn + i)) * element(fc2, out * kFfn + i);
      }
      want.span<float>()[static_cast<size_t>(row * kHidden + out)] = static_cast<float>(sum);
    }
  }
  expect_close(got.y.data(), want, Tolerance{1e-5, 1e-6});
  EXPECT_EQ(got.bias.shape(), (Shape{kHidden}));
}

INSTANTIATE_TEST_SUITE_P(
    Activations, GatedMlpTest,
    testing::Values(Gate{Activation::kSwiglu, [](double a, double b) { return silu(a) * b; }},
                    Gate{Activation::kSwigluSecond, [](double a, double b) { return a * silu(b); }},
                    Gate{Activation::kGeglu, [](double a, double b) { return a * gelu_erf(b); }},
                    Gate{Activation::kLiglu, [](double a, double b) { return a * b; }},
                    Gate{Activation::kReglu,
                         [](double a, double b) { return a * std::max(b, 0.0); }}),
    [](const auto& one) { return std::string(name_of(one.param.activation)); });

}  // namespace
}  // namespace megatron
