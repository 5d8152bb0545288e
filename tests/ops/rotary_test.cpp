#include "megatron/ops/rotary.h"

#include <cmath>
#include <vector>

#include "megatron/kernels/head_norm.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/heads.h"
#include "megatron/ops/norm.h"
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

// Normalizing and rotating at once has the bits of one after the other.
TEST(NormHeadsTest, HasTheBitsOfNormsAndRotation) {
  constexpr int64_t kHeads = 4, kGroups = 2, kSize = 16;
  const NormOptions options{.epsilon = 1e-3f, .one_plus_weight = true};
  const Tensor table = rotary_table(9, {.frequencies = {1, 0.5f, 0.2f, 0.1f}});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool is_rms : {true, false}) {
      const auto normal = [&](const Shape& shape, uint64_t seed) {
        return random_normal(shape, {.seed = seed, .dtype = dtype});
      };
      const Tensor qkv = normal({5, 2, (kHeads + 2 * kGroups) * kSize}, 1);
      const Tensor weights[2] = {normal({kSize}, 2), normal({kSize}, 3)};
      const Tensor biases[2] = {normal({kSize}, 4), normal({kSize}, 5)};
      const auto normed = [&](const Variable& x, size_t i) {
        return is_rms ? rms_norm(x, Variable(weights[i]), options)
                      : layer_norm(x, Variable(weights[i]), Variable(biases[i]), options);
      };
      const NoGrad no_grad;
      Heads heads = split_heads(Variable(qkv), kHeads, kGroups);
      heads.q = normed(heads.q, 0);
      heads.k = normed(heads.k, 1);
      const Variable want = rotary_inplace(join_heads(heads), kHeads, kGroups, table, {.offset = 2},
                                           kernels::RotaryPairs::kHalves);
      Tensor got = copied(qkv);
      const auto bias = [&](size_t i) {
        return is_rms ? ConstView{} : ConstView(biases[i].view());
      };
      kernels::norm_heads_inplace(got.view(), kHeads, kGroups,
                                  {.q_weight = weights[0].view(),
                                   .q_bias = bias(0),
                                   .k_weight = weights[1].view(),
                                   .k_bias = bias(1),
                                   .weight_offset = 1,
                                   .epsilon = options.epsilon},
                                  {.table = table.view(), .offset = 2}, Stream{});
      expect_identical(got, want.data());
    }
  }
}

}  // namespace
}  // namespace megatron
