#include "megatron/ops/rotary.h"

#include <cmath>
#include <vector>

#include "megatron/ops/elementwise.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

using kernels::RotaryPairs;

TEST(RotaryOpTest, Gradients) {
  const Tensor table = rotary_table(8, {.frequencies = {1.0f, 0.01f}});
  const Tensor ids = tensor_of(std::vector<int64_t>{0, 1, 2, 5, 6, 7}, {2, 3});
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kInterleaved}) {
    check({.name = "rotary_inplace",
           .inputs = {random_normal({3, 2, 8 * 5}, {.seed = 1})},
           .op =
               [=](const auto& in) {  // a copy first: the op writes over its input
                 return rotary_inplace(scale(in[0], 1.0f), 4, 2, table, {.position_ids = ids},
                                       pairs);
               },
           .terms = 4});
  }
}

TEST(RotaryOpTest, LeavesASharedGradientAlone) {
  const Tensor table = rotary_table(4, {.frequencies = {1.0f}});
  const Variable x = Variable::leaf(random_normal({3, 1, 6}, {.seed = 1}));
  const Tensor dy = random_normal({3, 1, 6}, {.seed = 2});
  const Tensor before = copied(dy);
  backward(rotary_inplace(scale(x, 1.0f), 1, 1, table, {}, RotaryPairs::kHalves), dy);
  expect_identical(dy, before);
}

TEST(RotaryTableTest, AnglesAreFrequencyTimesPosition) {
  const Tensor table = rotary_table(
      5, {.frequencies = {1.0f, 0.25f, 0.01f}, .interpolation_factor = 2, .magnitude = 1.5f});
  ASSERT_EQ(table.shape(), (Shape{5, 6}));
  const std::vector<double> frequencies = {1.0, 0.25, 0.01};
  for (int64_t p = 0; p < 5; ++p) {
    for (int64_t i = 0; i < 3; ++i) {
      const double theta = static_cast<double>(p) / 2 * frequencies[static_cast<size_t>(i)];
      EXPECT_NEAR(element(table, p * 6 + i), 1.5 * std::cos(theta), 1e-6);
      EXPECT_NEAR(element(table, p * 6 + 3 + i), 1.5 * std::sin(theta), 1e-6);
    }
  }
}

}  // namespace
}  // namespace megatron
