#include "tests/kernels/attention_problem.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/core/parallel_for.h"

// Sizes, heads, types, numbers that are large or none, and what is refused.
namespace megatron::attention_tests {
namespace {

TEST(AttentionTest, SizesAroundTiles) {
  for (const int64_t s : {1, 2, 55, 56, 57, 64, 65, 130}) {
    for (const bool is_causal : {false, true}) {
      check({.name = "s " + std::to_string(s),
             .sq = s,
             .sk = s,
             .b = 1,
             .heads = 2,
             .groups = 2,
             .d = 8,
             .settings = {.scale = 0.35f, .is_causal = is_causal}});
    }
  }
}

TEST(AttentionTest, HeadSizes) {
  for (const int64_t d : {1, 3, 16, 31, 33, 64, 80, 128, 256}) {
    check({.name = "d " + std::to_string(d),
           .sq = 37,
           .sk = 37,
           .b = 2,
           .heads = 1,
           .groups = 1,
           .d = d,
           .settings = {.scale = 1 / std::sqrt(static_cast<float>(d)), .is_causal = true}});
  }
}

TEST(AttentionTest, GroupedAndMultiQuery) {
  for (const int64_t groups : {1, 2, 6}) {
    check({.name = "groups " + std::to_string(groups),
           .sq = 70,
           .sk = 70,
           .b = 2,
           .heads = 6,
           .groups = groups,
           .d = 16,
           .settings = {.scale = 0.25f, .is_causal = true}});
  }
}

TEST(AttentionTest, CrossAttention) {
  check({.name = "short on long",
         .sq = 5,
         .sk = 131,
         .b = 2,
         .heads = 2,
         .groups = 2,
         .d = 12,
         .settings = {.scale = 0.3f}});
  check({.name = "long on short",
         .sq = 131,
         .sk = 3,
         .b = 1,
         .heads = 2,
         .groups = 2,
         .d = 12,
         .settings = {.scale = 0.3f}});
}

TEST(AttentionTest, QueriesAfterACache) {
  check({.name = "one token",
         .sq = 1,
         .sk = 100,
         .b = 2,
         .heads = 4,
         .groups = 2,
         .d = 16,
         .settings = {.scale = 0.25f, .is_causal = true, .query_offset = 99}});
  check({.name = "chunk",
         .sq = 60,
         .sk = 128,
         .b = 1,
         .heads = 2,
         .groups = 1,
         .d = 16,
         .settings = {.scale = 0.25f, .is_causal = true, .query_offset = 68}});
}

TEST(AttentionTest, SixteenBit) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    check({.name = std::string(name_of(dtype)),
           .sq = 70,
           .sk = 70,
           .b = 2,
           .heads = 4,
           .groups = 2,
           .d = 40,
           .settings = {.scale = 0.158f, .is_causal = true},
           .dtype = dtype});
  }
}

// Scores around 100 have an error of 1e-5, and gradients the scale as a factor.
TEST(AttentionTest, LargeScoresDoNotOverflow) {
  check({.name = "large",
         .sq = 33,
         .sk = 65,
         .b = 1,
         .heads = 1,
         .groups = 1,
         .d = 4,
         .settings = {.scale = 40.0f},
         .widening = 40});
}

// A value that is not a number reaches every output that depends on it, and no other.
TEST(AttentionTest, NotANumberIsNotLost) {
  const Problem p{.name = "nan",
                  .sq = 40,
                  .sk = 40,
                  .b = 1,
                  .heads = 2,
                  .groups = 2,
                  .d = 4,
                  .settings = {.scale = 0.5f, .is_causal = true}};
  const auto is_nan_at = [&](const Tensor& x, int64_t position, int64_t head) {
    return std::isnan(element(x, position * p.heads * p.d + head * p.d));
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr int64_t kPosition = 35;
  Inputs query = inputs_of(p);
  query.q.span<float>()[static_cast<size_t>(kPosition * p.heads * p.d)] = nan;  // head 0
  const Tensor of_query = run(p, query).out;
  Inputs key = inputs_of(p);
  key.k.span<float>()[static_cast<size_t>(kPosition * p.heads * p.d)] = nan;
  const Tensor of_key = run(p, key).out;
  for (int64_t position = 0; position < p.sq; ++position) {
    EXPECT_EQ(is_nan_at(of_query, position, 0), position == kPosition) << position;
    EXPECT_EQ(is_nan_at(of_key, position, 0), position >= kPosition) << position;
    EXPECT_FALSE(is_nan_at(of_query, position, 1));
    EXPECT_FALSE(is_nan_at(of_key, position, 1));
  }
  // All scores of a row: a query of a model whose weights are not numbers.
  Inputs all = inputs_of(p);
  for (float& x : all.q.span<float>()) x = nan;
  const Tensor of_all = run(p, all).out;
  for (int64_t i = 0; i < of_all.numel(); ++i) EXPECT_TRUE(std::isnan(element(of_all, i))) << i;
}

TEST(AttentionTest, EmptyExtents) {
  check({.name = "no samples", .sq = 4, .sk = 4, .b = 0, .heads = 2, .groups = 2, .d = 4});
  check({.name = "no queries", .sq = 0, .sk = 4, .b = 1, .heads = 2, .groups = 2, .d = 4});
  check({.name = "no keys", .sq = 4, .sk = 0, .b = 1, .heads = 2, .groups = 2, .d = 4});
}

#if defined(_OPENMP)
TEST(AttentionTest, DoesNotDependOnTheNumberOfThreads) {
  const Tensor bias = random_normal({4, 599}, {.seed = 8});
  const Problem p{.name = "threads",
                  .sq = 300,
                  .sk = 300,
                  .b = 3,
                  .heads = 4,
                  .groups = 2,
                  .d = 32,
                  .settings = {.scale = 0.2f, .is_causal = true, .relative_bias = bias.view()}};
  const Inputs in = inputs_of(p);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const Outputs want = run(p, in);
  for (const int count : {2, 3, 7}) {
    omp_set_num_threads(count);
    const Outputs got = run(p, in);
    expect_identical(got.out, want.out);
    expect_identical(got.dq, want.dq);
    expect_identical(got.dk, want.dk);
    expect_identical(got.dv, want.dv);
    expect_identical(got.dbias, want.dbias);
  }
  omp_set_num_threads(threads);
}
#endif

TEST(AttentionTest, RefusesWhatDoesNotFit) {
  const Tensor x({4, 1, 24}, DType::kFloat32, Stream{});
  EXPECT_EQ(message_of<ShapeError>([&] { kernels::split_qkv(x.view(), 4, 3); }),
            "attention: qkv [4, 1, 24] does not divide into 4 query heads and 3 groups of keys and "
            "values");
  EXPECT_EQ(message_of<ShapeError>([&] { kernels::heads_of(x.view(), 5); }),
            "attention: [4, 1, 24] does not divide into 5 heads");
  EXPECT_EQ(message_of<ShapeError>([&] { kernels::split_kv(x.view(), 8); }),
            "attention: kv [4, 1, 24] does not divide into 8 heads of keys and values");
  const Tensor wide({1, 1, 257}, DType::kFloat32, Stream{});
  const auto heads = kernels::heads_of(wide.view(), 1);
  EXPECT_EQ(
      message_of<Unsupported>([&] { kernels::expect_attention_inputs(heads, heads, heads, {}); }),
      "attention: head size 257 is above 256; lower --kv-channels");
  const auto three = kernels::heads_of(x.view(), 3);
  const auto two = kernels::heads_of(Tensor({4, 1, 16}, DType::kFloat32, Stream{}).view(), 2);
  const Tensor bias({3, 4, 4}, DType::kFloat32, Stream{});
  EXPECT_EQ(message_of<ShapeError>([&] {
              kernels::expect_attention_inputs(three, three, three, {.relative_bias = bias.view()});
            }),
            "attention: relative_bias has shape [3, 4, 4], expected [3, 7]");
  EXPECT_EQ(message_of<ShapeError>([&] { kernels::expect_attention_inputs(three, two, two, {}); }),
            "attention: 3 query heads do not divide evenly over 2 key heads");
}

}  // namespace
}  // namespace megatron::attention_tests
