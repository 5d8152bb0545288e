#include "megatron/ops/linear.h"

#include "tests/ops/op_case.h"

namespace megatron {
namespace {

Variable apply(const std::vector<Variable>& in) {
  return linear(in[0], in[1], in.size() > 2 ? in[2] : Variable());
}

TEST(LinearTest, WithBias) {
  check({.name = "linear",
         .inputs = {random_normal({3, 2, 5}, {.seed = 1}), random_normal({7, 5}, {.seed = 2}),
                    random_normal({7}, {.seed = 3})},
         .op = apply,
         .terms = 7});
}

TEST(LinearTest, WithoutBias) {
  check({.name = "linear",
         .inputs = {random_normal({4, 9}, {.seed = 1}), random_normal({1, 9}, {.seed = 2})},
         .op = apply,
         .terms = 9});
}

TEST(LinearTest, NoTokens) {
  const Variable x = Variable::leaf(random_normal({0, 4}, {.seed = 1}));
  const Variable weight = Variable::leaf(random_normal({3, 4}, {.seed = 2}));
  const Variable bias = Variable::leaf(random_normal({3}, {.seed = 3}));
  backward(linear(x, weight, bias), Tensor({0, 3}, DType::kFloat32, Stream{}));
  expect_identical(weight.grad(), zeros({3, 4}, DType::kFloat32, Stream{}));
  expect_identical(bias.grad(), zeros({3}, DType::kFloat32, Stream{}));
}

// Two microbatches add up in the fp32 main gradient of a bf16 weight.
TEST(LinearTest, AddsIntoTheMainGradient) {
  const Tensor x = random_normal({6, 8}, {.seed = 1, .dtype = DType::kBFloat16});
  const Tensor dy = random_normal({6, 5}, {.seed = 2, .dtype = DType::kBFloat16});
  const Variable weight =
      Variable::leaf(random_normal({5, 8}, {.seed = 3, .dtype = DType::kBFloat16}));
  const Variable bias = Variable::leaf(random_normal({5}, {.seed = 4, .dtype = DType::kBFloat16}));
  Variable(weight).set_main_grad(zeros({5, 8}, DType::kFloat32, Stream{}));
  Variable(bias).set_main_grad(zeros({5}, DType::kFloat32, Stream{}));
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    backward(linear(Variable(x), weight, bias), dy);
  }

  const Variable wide_weight = Variable::leaf(cast(weight.data(), DType::kFloat32));
  const Variable wide_bias = Variable::leaf(cast(bias.data(), DType::kFloat32));
  backward(linear(Variable(cast(x, DType::kFloat32)), wide_weight, wide_bias),
           cast(dy, DType::kFloat32));
  Tensor want = copied(wide_weight.grad());
  scale_inplace(want, 2);
  expect_close(weight.grad(), want, tolerance_of(DType::kFloat32).for_terms(12));
  Tensor want_bias = copied(wide_bias.grad());
  scale_inplace(want_bias, 2);
  expect_close(bias.grad(), want_bias, tolerance_of(DType::kFloat32).for_terms(12));
}

TEST(LinearTest, RefusesAWeightOfAnotherWidth) {
  const Variable x(random_normal({2, 4}, {.seed = 1}));
  const Variable weight(random_normal({3, 5}, {.seed = 2}));
  EXPECT_EQ(message_of<ShapeError>([&] { linear(x, weight, Variable()); }),
            "linear: weight has shape [3, 5], expected [3, 4]");
}

}  // namespace
}  // namespace megatron
