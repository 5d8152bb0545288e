#include "megatron/ops/label_losses.h"

#include <cmath>

#include "tests/ops/op_case.h"

namespace megatron {
namespace {

TEST(LabelLossesTest, SquaredError) {
  const Tensor target = random_normal({3, 1}, {.seed = 2});
  check({.name = "mean_squared_error",
         .inputs = {random_normal({3, 1}, {.seed = 1})},
         .op = [&](const auto& in) { return mean_squared_error(in[0], target); }});
  const Tensor x = tensor_of(std::vector<float>{1.0F, -2.0F}, {2});
  const Tensor zero = tensor_of(std::vector<float>{0.5F, 0.0F}, {2});
  EXPECT_FLOAT_EQ(static_cast<float>(mean_squared_error(Variable(x), zero).data().item()), 2.125F);
}

TEST(LabelLossesTest, BinaryCrossEntropy) {
  const Tensor labels = tensor_of(std::vector<int64_t>{1, 0, 0, 1, 1, 0}, {6});
  check({.name = "binary_cross_entropy",
         .inputs = {random_normal({2, 3}, {.seed = 1})},
         .op = [&](const auto& in) { return binary_cross_entropy(in[0], labels); }});
  const Tensor x = tensor_of(std::vector<float>{2.0F, -1.0F}, {2});
  const Tensor right = tensor_of(std::vector<int64_t>{1, 1}, {2});
  const double expected = (std::log1p(std::exp(-2.0)) + std::log1p(std::exp(1.0))) / 2;
  EXPECT_NEAR(binary_cross_entropy(Variable(x), right).data().item(), expected, 1e-6);
}

}  // namespace
}  // namespace megatron
