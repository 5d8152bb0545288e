#include "tests/kernels/attention_problem.h"

#include <cmath>
#include <string>
#include <vector>

// Masks for documents, prefixes and padding; biases of scores; dropout.
namespace megatron::attention_tests {
namespace {

TEST(AttentionTest, DocumentStarts) {
  const int64_t s = 150;
  std::vector<int32_t> starts;
  for (int32_t batch = 0; batch < 2; ++batch) {
    for (int32_t i = 0; i < s; ++i) {
      const int32_t boundary = batch == 0 ? 140 : 67;
      starts.push_back(i >= boundary ? boundary : i >= 20 ? 20 : 0);
    }
  }
  const Tensor documents = tensor_of(starts, {2, s});
  check({.name = "documents",
         .sq = s,
         .sk = s,
         .b = 2,
         .heads = 2,
         .groups = 2,
         .d = 16,
         .settings = {.scale = 0.25f, .is_causal = true, .document_starts = documents.view()}});
}

// Two documents a row, each with a prefix that sees itself in both directions.
TEST(AttentionTest, PrefixesOfDocuments) {
  const int64_t s = 150;
  std::vector<int32_t> starts;
  std::vector<int32_t> ends;
  for (int32_t batch = 0; batch < 2; ++batch) {
    const int32_t boundary = batch == 0 ? 20 : 67;
    for (int32_t i = 0; i < s; ++i) {
      const int32_t start = i < boundary ? 0 : boundary;
      const int32_t end = i < boundary ? boundary - 1 : boundary + 70;
      starts.push_back(start);
      ends.push_back(i < end ? end : 0);
    }
  }
  const Tensor prefixes = tensor_of(ends, {2, s});
  const Tensor documents = tensor_of(starts, {2, s});
  Problem p{.name = "prefixes",
            .sq = s,
            .sk = s,
            .b = 2,
            .heads = 4,
            .groups = 2,
            .d = 16,
            .settings = {.scale = 0.25f, .is_causal = true, .prefix_ends = prefixes.view()}};
  check(p);
  p.name = "prefixes of documents";
  p.settings.document_starts = documents.view();
  p.settings.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
  check(p);
}

Tensor padding(int64_t b, int64_t sk, const std::vector<int64_t>& lengths) {
  Tensor mask({b, sk}, DType::kBool, Stream{});
  for (int64_t i = 0; i < b * sk; ++i) {
    mask.view().as<bool>()[i] = i % sk >= lengths[static_cast<size_t>(i / sk)];
  }
  return mask;
}

TEST(AttentionTest, KeyPadding) {
  const Tensor mask = padding(3, 80, {80, 33, 0});
  const Problem p{.name = "padding",
                  .sq = 60,
                  .sk = 80,
                  .b = 3,
                  .heads = 2,
                  .groups = 1,
                  .d = 16,
                  .settings = {.scale = 0.25f, .key_padding_mask = mask.view()}};
  check(p);

  const Inputs in = inputs_of(p);
  const Outputs y = run(p, in);
  for (int64_t i = 0; i < p.sq; ++i) {  // sample 2 sees no key
    EXPECT_EQ(element(y.out, (i * p.b + 2) * p.heads * p.d), 0);
    EXPECT_EQ(element(y.lse, (2 * p.heads) * p.sq + i), std::numeric_limits<double>::infinity());
  }
}

TEST(AttentionTest, Alibi) {
  const Tensor slopes = tensor_of(std::vector<float>{0.5f, 0.125f}, {2});
  check({.name = "alibi",
         .sq = 90,
         .sk = 90,
         .b = 1,
         .heads = 2,
         .groups = 2,
         .d = 16,
         .settings = {.scale = 0.25f, .is_causal = true, .alibi_slopes = slopes.view()}});
}

TEST(AttentionTest, RelativeBias) {
  const Tensor bias = random_normal({4, 70 + 90 - 1}, {.seed = 8});
  const Tensor mask = padding(3, 90, {90, 41, 3});
  Problem p{.name = "relative bias",
            .sq = 70,
            .sk = 90,
            .b = 3,
            .heads = 4,
            .groups = 2,
            .d = 16,
            .settings = {.scale = 0.25f, .relative_bias = bias.view()}};
  check(p);
  p.name = "relative bias with dropout and padding";
  p.settings.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
  p.settings.key_padding_mask = mask.view();
  check(p);
  p.name = "causal relative bias in 16 bits";
  p.settings.is_causal = true;
  p.settings.dropout = {};
  p.dtype = DType::kBFloat16;
  check(p);
}

TEST(AttentionTest, Dropout) {
  check({.name = "dropout",
         .sq = 70,
         .sk = 90,
         .b = 2,
         .heads = 4,
         .groups = 2,
         .d = 16,
         .settings = {.scale = 0.25f,
                      .dropout = {.key = 7, .first_sample = 5, .probability = 0.3f},
                      .first_head = 4}});
}

// Rows of the mask are places in the whole sequence, of which the queries are a part.
TEST(AttentionTest, DropoutOfAPartOfTheQueries) {
  check({.name = "dropout of a part",
         .sq = 30,
         .sk = 90,
         .b = 2,
         .heads = 4,
         .groups = 2,
         .d = 16,
         .settings = {.scale = 0.25f,
                      .is_causal = true,
                      .query_offset = 60,
                      .dropout = {.key = 7, .first_sample = 5, .probability = 0.3f},
                      .dropout_length = 120,
                      .first_head = 4}});
}

// A block of keys of a longer sequence: groups of dropout's columns begin anywhere in it, and some
// queries see none of its keys.
TEST(AttentionTest, KeysFromAPositionOn) {
  const Tensor slopes = tensor_of(std::vector<float>{0.5f, 0.125f}, {2});
  std::vector<int32_t> starts;
  for (int32_t batch = 0; batch < 2; ++batch) {
    for (int32_t i = 0; i < 70; ++i) starts.push_back(i < 20 ? 0 : i < 50 ? 100 + batch : 205);
  }
  const Tensor documents = tensor_of(starts, {2, 70});
  for (const int64_t key_offset : {32, 64, 77}) {
    Problem p{.name = "keys from " + std::to_string(key_offset),
              .sq = 70,
              .sk = 90,
              .b = 2,
              .heads = 2,
              .groups = 2,
              .d = 16,
              .settings = {.scale = 0.25f,
                           .query_offset = 210,
                           .key_offset = key_offset,
                           .alibi_slopes = slopes.view()},
              .widening = 4};  // scores of up to 80
    check(p);
    p.settings.alibi_slopes = {};
    p.settings.document_starts = documents.view();
    p.settings.dropout = {.key = 7, .first_sample = 5, .probability = 0.3f};
    p.settings.dropout_length = 300;
    check(p);
    p.settings.is_causal = true;
    p.settings.query_offset = key_offset;
    p.sk = p.sq;
    check(p);
  }
}

TEST(AttentionTest, DropoutFindsItsSamplesInMemory) {
  const int64_t somewhere = 3;
  check({.name = "dropout of samples in memory",
         .sq = 9,
         .sk = 9,
         .b = 2,
         .heads = 2,
         .groups = 2,
         .d = 16,
         .settings = {
             .scale = 0.25f,
             .dropout = {
                 .key = 7, .first_sample = 5, .probability = 0.3f, .more_samples = &somewhere}}});
}

// Dropping with probability p keeps a share 1 - p: with v = 1, the mean output is 1.
TEST(AttentionTest, DropoutKeepsTheMean) {
  const Problem p{.name = "mean",
                  .sq = 64,
                  .sk = 256,
                  .b = 4,
                  .heads = 4,
                  .groups = 4,
                  .d = 4,
                  .settings = {.scale = 0, .dropout = {.key = 3, .probability = 0.25f}}};
  Inputs in = inputs_of(p);
  in.v = full(in.v.shape(), 1.0f, DType::kFloat32, Stream{});
  const Outputs y = run(p, in);
  double sum = 0;
  for (int64_t i = 0; i < y.out.numel(); ++i) sum += element(y.out, i);
  const auto draws = static_cast<double>(p.sq * p.sk * p.b * p.heads);
  EXPECT_NEAR(sum / static_cast<double>(y.out.numel()), 1.0, 5 * std::sqrt(1.0 / 3.0 / draws));
}

}  // namespace
}  // namespace megatron::attention_tests
