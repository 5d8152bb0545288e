#include "megatron/ops/relative_bias.h"

#include "tests/ops/op_case.h"

namespace megatron {
namespace {

TEST(RelativeBucketTest, SmallDistancesHaveRowsOfTheirOwn) {
  const RelativeBuckets both;
  EXPECT_EQ(relative_bucket(0, both), 0);
  EXPECT_EQ(relative_bucket(-1, both), 1);
  EXPECT_EQ(relative_bucket(1, both), 17);
  EXPECT_EQ(relative_bucket(-7, both), 7);
  const RelativeBuckets before = {.is_bidirectional = false};
  EXPECT_EQ(relative_bucket(3, before), 0);
  EXPECT_EQ(relative_bucket(-15, before), 15);
}

// 8 * 16^(i / 8) tokens away begins row 8 + i of the 16 rows of each direction.
TEST(RelativeBucketTest, LargeDistancesShareRowsUpToTheLast) {
  const RelativeBuckets both;
  EXPECT_EQ(relative_bucket(-8, both), 8);
  EXPECT_EQ(relative_bucket(-11, both), 8);
  EXPECT_EQ(relative_bucket(-12, both), 9);
  EXPECT_EQ(relative_bucket(-16, both), 10);
  EXPECT_EQ(relative_bucket(-64, both), 14);
  EXPECT_EQ(relative_bucket(-127, both), 15);
  EXPECT_EQ(relative_bucket(-5000, both), 15);
  EXPECT_EQ(relative_bucket(5000, both), 31);
}

// bias[h, i] = table[bucket(first_distance + i), h].
Tensor expected_bias(const Tensor& table, int64_t first_distance, int64_t count,
                     const RelativeBuckets& buckets) {
  Tensor bias({table.size(1), count}, DType::kFloat32, Stream{});
  auto at = bias.span<float>().begin();
  for (int64_t h = 0; h < table.size(1); ++h) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = relative_bucket(first_distance + i, buckets);
      *at++ = table.span<float>()[static_cast<size_t>(row * table.size(1) + h)];
    }
  }
  return bias;
}

TEST(RelativeBiasTest, LooksUpEachDistance) {
  for (const bool is_bidirectional : {false, true}) {
    const RelativeBuckets buckets = {
        .num_buckets = 8, .max_distance = 6, .is_bidirectional = is_bidirectional};
    check({.name = "relative_bias",
           .inputs = {random_normal({8, 3}, {.seed = 1})},
           .op =
               [=](const auto& in) {
                 return relative_bias(in[0], relative_rows(-6, 13, buckets).to(in[0].stream()));
               },
           .expected = [=](const auto& in) { return expected_bias(in[0], -6, 13, buckets); },
           .terms = 13,
           .dtypes = {}});
  }
}

// Weights in 16 bits get gradients in 16 bits, of sums in fp32.
TEST(RelativeBiasTest, ATableMayHave16Bits) {
  const RelativeBuckets buckets = {.num_buckets = 8, .max_distance = 6};
  const Variable table = Variable::leaf(cast(random_normal({8, 2}, {.seed = 1}), DType::kBFloat16));
  const Variable bias = relative_bias(table, relative_rows(-9, 19, buckets));
  EXPECT_EQ(bias.dtype(), DType::kFloat32);
  backward(bias);
  EXPECT_EQ(table.grad().dtype(), DType::kBFloat16);
  EXPECT_EQ(element(table.grad(), 0), 1);      // a token with itself
  EXPECT_EQ(element(table.grad(), 3 * 2), 6);  // 4 to 9 tokens before
}

}  // namespace
}  // namespace megatron
