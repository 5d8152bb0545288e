#include "megatron/ops/attention.h"

#include "megatron/core/error.h"
#include "megatron/ops/output_gate.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

TEST(AttentionOpTest, PackedSelfAttention) {
  check(
      {.name = "attention",
       .inputs = {random_normal({5, 2, 6 * 3}, {.seed = 1})},
       .op =
           [](const auto& in) { return attention(in[0], {.num_heads = 2, .num_query_groups = 2}); },
       .terms = 8});
}

TEST(AttentionOpTest, GroupedQueriesWithDropoutAndAlibi) {
  const std::vector<float> slopes = alibi_slopes(4);
  check(
      {.name = "attention",
       .inputs = {random_normal({6, 1, 8 * 3}, {.seed = 1})},
       .op =
           [slopes](const auto& in) {
             return attention(in[0],
                              {.num_heads = 4,
                               .num_query_groups = 2,
                               .alibi_slopes = tensor_of(slopes, {4}),
                               .dropout = {.key = 1, .first_sample = 3, .probability = 0.2f}});
           },
       // The first query sees one key: its gradient is 0 but for the rounding of the saved output.
       .terms = 24});
}

TEST(AttentionOpTest, CrossAttention) {
  check({.name = "cross_attention",
         .inputs = {random_normal({3, 2, 2 * 4}, {.seed = 1}),
                    random_normal({5, 2, 2 * 2 * 4}, {.seed = 2})},
         .op =
             [](const auto& in) {
               return cross_attention(in[0], in[1], {.num_heads = 2, .is_causal = false});
             },
         .terms = 8});
}

TEST(AttentionOpTest, CrossAttentionWithPaddingAndDropout) {
  Tensor hidden({2, 5}, DType::kBool, Stream{});
  for (int64_t i = 0; i < 10; ++i) hidden.view().as<bool>()[i] = i % 5 >= (i < 5 ? 5 : 3);
  check({.name = "cross_attention",
         .inputs = {random_normal({3, 2, 2 * 4}, {.seed = 1}),
                    random_normal({5, 2, 2 * 2 * 4}, {.seed = 2})},
         .op =
             [hidden](const auto& in) {
               return cross_attention(
                   in[0], in[1],
                   {.num_heads = 2,
                    .is_causal = false,
                    .key_padding_mask = hidden,
                    .dropout = {.key = 5, .first_sample = 1, .probability = 0.3f}});
             },
         .terms = 32});
}

// [sk, b, w] -> [sk, c b, w]: each sequence c times, one after the other.
Tensor repeated(const Tensor& x, int64_t c) {
  const int64_t w = x.size(2);
  Tensor y({x.size(0), c * x.size(1), w}, DType::kFloat32, Stream{});
  for (int64_t i = 0; i < y.numel(); ++i) {
    y.span<float>()[static_cast<size_t>(i)] = static_cast<float>(element(x, i / w / c * w + i % w));
  }
  return y;
}

TEST(AttentionOpTest, SequencesOfQueriesMayShareTheirKeys) {
  const AttentionOptions options = {.num_heads = 2, .is_causal = false};
  for (const int64_t c : {1, 3}) {
    check({.name = "cross_attention",
           .inputs = {random_normal({4, 2 * c, 2 * 4}, {.seed = 1}),
                      random_normal({5, 2, 2 * 2 * 4}, {.seed = 2})},
           .op = [=](const auto& in) { return cross_attention(in[0], in[1], options); },
           .expected =
               [=](const auto& in) {
                 return cross_attention(Variable(in[0]), Variable(repeated(in[1], c)), options)
                     .data();
               },
           .terms = 32});
  }
  EXPECT_THROW(cross_attention(Variable(zeros({4, 3, 8}, DType::kFloat32, Stream{})),
                               Variable(zeros({5, 2, 16}, DType::kFloat32, Stream{})), options),
               ShapeError);
}

// Two samples with six sequences of queries each, which share the keys of two: the second sample is
// masked as it is alone.
TEST(AttentionOpTest, DropoutOfSharedKeysBelongsToTheSample) {
  const Tensor q = random_normal({4, 12, 2 * 4}, {.seed = 1});
  const Tensor kv = random_normal({5, 4, 2 * 2 * 4}, {.seed = 2});
  const auto columns = [](const Tensor& x, int64_t first, int64_t count) {
    Tensor part({x.size(0), count, x.size(2)}, DType::kFloat32, Stream{});
    for (int64_t i = 0; i < part.numel(); ++i) {
      const int64_t row = i / x.size(2);
      part.span<float>()[static_cast<size_t>(i)] = static_cast<float>(element(
          x, ((row / count) * x.size(1) + first + row % count) * x.size(2) + i % x.size(2)));
    }
    return part;
  };
  const auto attended = [](const Tensor& queries, const Tensor& keys, int64_t first_sample) {
    RandomState random(1);
    random.set_first_sample(first_sample);
    return cross_attention(Variable(queries), Variable(keys),
                           {.num_heads = 2,
                            .is_causal = false,
                            .dropout = random.of_parts(6).dropout_key(5, 0.5f)})
        .data();
  };
  const Tensor both = attended(q, kv, 7);
  expect_identical(columns(both, 6, 6), attended(columns(q, 6, 6), columns(kv, 2, 2), 8));
  // Otherwise the masks are different.
  EXPECT_NE(element(attended(q, kv, 8), 0), element(both, 0));
}

TEST(AttentionOpTest, RelativeBias) {
  Tensor hidden({2, 5}, DType::kBool, Stream{});
  for (int64_t i = 0; i < 10; ++i) hidden.view().as<bool>()[i] = i == 9;
  for (const bool is_causal : {false, true}) {
    check(
        {.name = "attention",
         .inputs = {random_normal({5, 2, 6 * 3}, {.seed = 1}), random_normal({2, 9}, {.seed = 2})},
         .op =
             [=](const auto& in) {
               return attention(in[0],
                                {.num_heads = 2,
                                 .num_query_groups = 2,
                                 .is_causal = is_causal,
                                 .key_padding_mask = hidden,
                                 .dropout = {.key = 5, .first_sample = 1, .probability = 0.2f}},
                                in[1]);
             },
         // As above: the rounding of the saved output enters each gradient of a score.
         .terms = 64,
         .fp32_inputs = {1}});
  }
}

TEST(AttentionOpTest, WindowCapAndSinks) {
  const std::vector<int32_t> starts = {0, 0, 0, 0, 4, 4, 4, 0, 0, 2, 2, 2, 2, 2};
  const Tensor documents = tensor_of(starts, {2, 7});
  for (const float logit_cap : {0.0f, 1.5f}) {
    check({.name = "attention",
           .inputs = {random_normal({7, 2, 8 * 3}, {.seed = 1}), random_normal({4}, {.seed = 2})},
           .op =
               [=](const auto& in) {
                 return attention(in[0],
                                  {.num_heads = 4,
                                   .num_query_groups = 2,
                                   .document_starts = documents,
                                   .dropout = {.key = 5, .first_sample = 1, .probability = 0.2f},
                                   .window = 3,
                                   .logit_cap = logit_cap},
                                  {}, in[1]);
               },
           .terms = 64,
           .fp32_inputs = {1}});
  }
}

TEST(OutputGateTest, SplitsAndGates) {
  check({.name = "output_gate",
         .inputs = {random_normal({3, 2, (2 * 4 + 2 * 2) * 3}, {.seed = 1})},
         .op =
             [](const auto& in) {
               const GatedProjection parts = split_output_gate(in[0], 4, 2);
               return output_gate(attention(parts.qkv, {.num_heads = 4, .num_query_groups = 2}),
                                  parts.gate);
             },
         .terms = 24});
}

// The fused layout: with one group, its query heads, then key, then value.
TEST(AttentionOpTest, ReadsTheFusedLayout) {
  const Tensor q = random_normal({4, 1, 6}, {.seed = 1});   // 2 heads of 3
  const Tensor kv = random_normal({4, 1, 6}, {.seed = 2});  // key and value of 3
  Tensor qkv({4, 1, 12}, DType::kFloat32, Stream{});
  Tensor kv_of_both({4, 1, 12}, DType::kFloat32, Stream{});
  for (size_t i = 0; i < 4; ++i) {
    for (size_t c = 0; c < 6; ++c) {
      qkv.span<float>()[i * 12 + c] = q.span<float>()[i * 6 + c];
      qkv.span<float>()[i * 12 + 6 + c] = kv.span<float>()[i * 6 + c];
      kv_of_both.span<float>()[i * 12 + c] = kv.span<float>()[i * 6 + c];
      kv_of_both.span<float>()[i * 12 + 6 + c] = kv.span<float>()[i * 6 + c];
    }
  }
  const Variable fused = attention(Variable(qkv), {.num_heads = 2, .num_query_groups = 1});
  const Variable apart = cross_attention(Variable(q), Variable(kv_of_both), {.num_heads = 2});
  expect_identical(fused.data(), apart.data());
}

TEST(AttentionOpTest, AlibiSlopes) {
  expect_identical(tensor_of(alibi_slopes(4), {4}),
                   tensor_of(std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f}, {4}));
  const std::vector<float> six = alibi_slopes(6);  // 4 heads' slopes, then every other of 8's
  expect_identical(
      tensor_of(six, {6}),
      tensor_of(std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f}, {6}));
}

}  // namespace
}  // namespace megatron
