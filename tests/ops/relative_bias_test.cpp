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

// bias[h, i, j] = table[bucket(j - i - first_query), h].
Tensor expected_bias(const Tensor& table, int64_t queries, int64_t keys,
                     const RelativeBuckets& buckets, int64_t first_query) {
  Tensor bias({table.size(1), queries, keys}, DType::kFloat32, Stream{});
  auto at = bias.span<float>().begin();
  for (int64_t h = 0; h < table.size(1); ++h) {
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t j = 0; j < keys; ++j) {
        const int64_t row = relative_bucket(j - i - first_query, buckets);
        *at++ = table.span<float>()[static_cast<size_t>(row * table.size(1) + h)];
      }
    }
  }
  return bias;
}

TEST(RelativeBiasTest, LooksUpTheDistanceOfEachPair) {
  for (const bool is_bidirectional : {false, true}) {
    const RelativeBuckets buckets = {
        .num_buckets = 8, .max_distance = 6, .is_bidirectional = is_bidirectional};
    check({.name = "relative_bias",
           .inputs = {random_normal({8, 3}, {.seed = 1})},
           .op =
               [=](const auto& in) {
                 // The last of five queries from position 2 on is at 6.
                 const Tensor rows = relative_rows(-6, 5 + 9 - 1, buckets);
                 return relative_bias(in[0], rows.to(in[0].stream()), 5);
               },
           .expected = [=](const auto& in) { return expected_bias(in[0], 5, 9, buckets, 2); },
           .terms = 45,
           .dtypes = {}});
  }
}

// Weights in 16 bits get gradients in 16 bits, of sums in fp32.
TEST(RelativeBiasTest, ATableMayHave16Bits) {
  const RelativeBuckets buckets = {.num_buckets = 8, .max_distance = 6};
  const Variable table = Variable::leaf(cast(random_normal({8, 2}, {.seed = 1}), DType::kBFloat16));
  const Variable bias = relative_bias(table, relative_rows(-3, 7, buckets), 4);
  EXPECT_EQ(bias.dtype(), DType::kFloat32);
  backward(bias);
  EXPECT_EQ(table.grad().dtype(), DType::kBFloat16);
  EXPECT_EQ(element(table.grad(), 0), 4);  // the four pairs of a token with itself
}

}  // namespace
}  // namespace megatron
