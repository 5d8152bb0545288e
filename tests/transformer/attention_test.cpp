#include "megatron/ops/heads.h"
#include "megatron/transformer/cross_attention.h"
#include "megatron/transformer/kv_cache.h"
#include "megatron/transformer/self_attention.h"
#include "tests/ops/op_case.h"
#include "tests/transformer/tiny_stack.h"

namespace megatron {
namespace {

Tensor attended(const SelfAttention& attention, const Tensor& x, ForwardContext context) {
  RandomState random(1);
  context.random = &random;
  return attention.forward(Variable(x), context).y.data();
}

// x with other values at token `at` of sample 0.
Tensor changed(const Tensor& x, int64_t at) {
  Tensor y = copied(x);
  const int64_t row = at * x.size(1) * x.size(2);
  for (int64_t c = 0; c < x.size(2); ++c) y.span<float>()[static_cast<size_t>(row + c)] += 1;
  return y;
}

// Sample 0 alone: [s, b, h] -> [s, 1, h].
Tensor first_sample(const Tensor& x) {
  Tensor y({x.size(0), 1, x.size(2)}, x.dtype(), Stream{});
  for (int64_t i = 0; i < x.size(0); ++i) {
    for (int64_t c = 0; c < x.size(2); ++c) {
      y.span<float>()[static_cast<size_t>(i * x.size(2) + c)] =
          static_cast<float>(element(x, i * x.size(1) * x.size(2) + c));
    }
  }
  return y;
}

bool is_same_row(const Tensor& a, const Tensor& b, int64_t token) {
  const int64_t row = token * a.size(1) * a.size(2);
  for (int64_t c = 0; c < a.size(2); ++c) {
    if (element(a, row + c) != element(b, row + c)) return false;
  }
  return true;
}

TEST(SelfAttentionTest, OnlyAnEncoderSeesLaterTokens) {
  const Tensor x = random_hidden(kLength, 32, 1);
  for (const Stack& stack : {kDecoder, kEncoder}) {
    const SelfAttention attention(tiny_config(), stack.place(0), {}, Stream{});
    initialize(attention, 2);
    const Tensor before = attended(attention, x, {});
    const Tensor after = attended(attention, changed(x, 5), {});
    EXPECT_EQ(is_same_row(before, after, 4), stack.is_causal);
    EXPECT_FALSE(is_same_row(before, after, 5));
    EXPECT_FALSE(is_same_row(before, after, 6));
  }
}

TEST(SelfAttentionTest, NobodySeesPadding) {
  const SelfAttention attention(tiny_config(), kEncoder.place(0), {}, Stream{});
  initialize(attention, 2);
  ForwardContext context;
  context.sequence.key_padding_mask = padding_mask({7, kLength}, kLength);
  const Tensor x = random_hidden(kLength, 32, 1);
  const Tensor before = attended(attention, x, context);
  const Tensor after = attended(attention, changed(x, 9), context);
  for (int64_t token = 0; token < kLength; ++token) {
    EXPECT_EQ(is_same_row(before, after, token), token != 9) << token;
  }
}

// A norm takes out what scales the queries of a head.
TEST(SelfAttentionTest, NormedQueriesHaveNoScale) {
  for (const bool qk_layernorm : {false, true}) {
    TransformerConfig c = tiny_config();
    c.qk_layernorm = qk_layernorm;
    c.norm_epsilon = 1e-12;
    const SelfAttention attention(c, kDecoder.place(0), {}, Stream{});
    initialize(attention, 2);
    const Tensor x = random_hidden(kLength, 32, 1);
    const Tensor before = attended(attention, x, {});
    for (const Parameter& parameter : named_parameters(attention)) {
      if (parameter.name != "linear_qkv.weight") continue;
      Tensor weight = parameter.variable.data();
      const int64_t rows = 8 * 32;  // of the first head's queries: the rows go q, k, v by head
      for (int64_t i = 0; i < rows; ++i) weight.span<float>()[static_cast<size_t>(i)] *= 4;
    }
    const Tensor after = attended(attention, x, {});
    double largest = 0;
    for (int64_t i = 0; i < before.numel(); ++i) {
      largest = std::max(largest, std::abs(element(before, i) - element(after, i)));
    }
    if (qk_layernorm) {
      EXPECT_LT(largest, 1e-5);
    } else {
      EXPECT_GT(largest, 1e-2);
    }
  }
}

// Tokens that come one or two at a time attend to their pages as they would to each other.
// Tokens that come one or two at a time, with the others in a cache, attend as all at once.
void expect_cached_as_whole(const TransformerConfig& c) {
  const SelfAttention attention(c, kDecoder.place(0), {}, Stream{});
  initialize(attention, 2);
  const Tensor x = random_hidden(kLength, 32, 1);
  const Tensor want = attended(attention, x, {});
  const NoGrad no_grad;
  KvCache cache(c, whole_model(1), 1, 8, 4, Stream{});
  const std::vector<int32_t> pages = {5, 2, 7, 1};
  for (int64_t token = 0, count = 1; token < kLength; token += count, count = 3 - count) {
    count = std::min(count, kLength - token);
    const PagedRow row{.num_tokens = count, .before = token, .pages = pages};
    CachedBatch cached{cache, cache.batch_of({&row, 1})};
    ForwardContext context;
    context.decode.cached = &cached;
    const Tensor own = first_sample(x.slice(token, count));
    const Tensor y = attended(attention, own, context);
    expect_close(y, first_sample(want.slice(token, count)), Tolerance{1e-5, 1e-5});
  }
}

TEST(SelfAttentionTest, CachedKeysAreNormed) {
  TransformerConfig c = tiny_config();
  c.qk_layernorm = true;
  expect_cached_as_whole(c);
}

TEST(SelfAttentionTest, CachedScoresHaveTheModelsScale) {
  TransformerConfig c = tiny_config();
  c.softmax_scale = 0.9;
  expect_cached_as_whole(c);
}

TEST(SelfAttentionTest, CachedKeysAreThoseOfTheWindow) {
  TransformerConfig c = tiny_config();
  c.attention_window = 3;
  c.attn_logit_softcapping = 0.5;
  c.softmax_type = SoftmaxType::kLearnable;
  expect_cached_as_whole(c);
  c.softmax_type = SoftmaxType::kOffByOne;
  expect_cached_as_whole(c);
}

TEST(SelfAttentionTest, NoTokenSeesBeyondTheWindow) {
  TransformerConfig c = tiny_config();
  c.attention_window = 4;
  const SelfAttention attention(c, kDecoder.place(0), {}, Stream{});
  initialize(attention, 2);
  const Tensor x = random_hidden(kLength, 32, 1);
  const Tensor before = attended(attention, x, {});
  const Tensor after = attended(attention, changed(x, 2), {});
  for (int64_t token = 0; token < kLength; ++token) {
    EXPECT_EQ(is_same_row(before, after, token), token < 2 || token > 5) << token;
  }
}

TEST(SelfAttentionTest, SinksAreParametersOfTheHeads) {
  TransformerConfig c = tiny_config();
  c.softmax_type = SoftmaxType::kLearnable;
  const SelfAttention attention(c, kDecoder.place(0), {}, Stream{});
  std::vector<std::string> names;
  for (const Parameter& spec : named_tensors(attention)) names.push_back(spec.name);
  EXPECT_EQ(names.front(), "core_attention.softmax_offset");
}

// q, k and v by group, as kernels::split_qkv describes it.
TEST(HeadsTest, SplitAndJoinAreInverse) {
  const Tensor x = random_normal({3, 2, (4 + 2 * 2) * 5}, {.seed = 1});
  const Heads heads = split_heads(Variable(x), 4, 2);
  EXPECT_EQ(heads.q.shape(), (Shape{3, 2, 4, 5}));
  EXPECT_EQ(heads.k.shape(), (Shape{3, 2, 2, 5}));
  EXPECT_EQ(element(heads.q.data(), 2 * 5),
            element(x, 4 * 5));  // the head after k and v of group 0
  EXPECT_EQ(element(heads.k.data(), 0), element(x, 2 * 5));
  EXPECT_EQ(element(heads.v.data(), 5), element(x, 7 * 5));
  expect_identical(join_heads(heads).data(), x);
}

TEST(HeadsTest, GradientsComeBackToTheirPlaces) {
  check({.name = "heads",
         .inputs = {random_normal({3, 2, (4 + 2 * 2) * 3}, {.seed = 1})},
         .op = [](const std::vector<Variable>& in) {
           const Heads heads = split_heads(in[0], 4, 2);
           // Values and queries keep their places, keys are used twice.
           return join_heads({heads.q, heads.k, heads.k});
         }});
}

TEST(CrossAttentionTest, SeesWhatTheEncoderShows) {
  const CrossAttention attention(tiny_config(), kCrossDecoder.place(0), {}, Stream{});
  initialize(attention, 2);
  RandomState random(1);
  ForwardContext context;
  context.random = &random;
  context.encoder.padding_mask = padding_mask({10, kEncoderLength}, kEncoderLength);
  const Tensor x = random_hidden(kLength, 32, 1);
  const Tensor encoder = random_hidden(kEncoderLength, 32, 2);
  const auto attended_to = [&](const Tensor& output) {
    context.encoder.output = Variable(output);
    return attention.forward(Variable(x), context).y.data();
  };
  const Tensor before = attended_to(encoder);
  EXPECT_EQ(before.shape(), x.shape());
  const Tensor after_padding = attended_to(changed(encoder, 12));
  const Tensor after_token = attended_to(changed(encoder, 9));
  for (int64_t token = 0; token < kLength; ++token) {
    EXPECT_TRUE(is_same_row(before, after_padding, token)) << token;
    EXPECT_FALSE(is_same_row(before, after_token, token)) << token;
  }
}

// Texts in pages: each token attends to its own, as it would without pages and padding.
TEST(CrossAttentionTest, ReadsTheTextOfEachTokenFromPages) {
  const TransformerConfig c = tiny_config();
  const CrossAttention attention(c, kCrossDecoder.place(0), {}, Stream{});
  initialize(attention, 2);
  const NoGrad no_grad;
  RandomState random(1);
  const Tensor encoder = random_hidden(kEncoderLength, 32, 2);
  const Tensor x = random_hidden(4, 32, 1);
  const std::vector<int64_t> lengths = {10, kEncoderLength};
  ForwardContext context;
  context.random = &random;
  context.encoder.output = Variable(encoder);
  context.encoder.padding_mask = padding_mask(lengths, kEncoderLength);
  const Tensor want = attention.forward(Variable(x), context).y.data();  // [4, 2, h]

  constexpr int64_t kPageTokens = 4;
  const std::vector<std::vector<int32_t>> pages = {{5, 2, 7}, {1, 0, 6, 4}};
  std::vector<int32_t> slots;
  for (int64_t i = 0; i < kEncoderLength; ++i) {
    for (size_t text = 0; text < 2; ++text) {
      const auto place = static_cast<size_t>(i / kPageTokens);
      slots.push_back(i < lengths[text]
                          ? static_cast<int32_t>(pages[text][place] * kPageTokens + i % kPageTokens)
                          : -1);
    }
  }
  KvCache cache(c, whole_model(1), 1, 8, kPageTokens, Stream{});
  attention.keep(Variable(encoder), cache, tensor_of(slots, {2 * kEncoderLength}));
  std::vector<PagedRow> rows;
  for (int64_t token = 0; token < 8; ++token) {  // token i of text j is 2 i + j
    const auto text = static_cast<size_t>(token % 2);
    rows.push_back({token, 1, lengths[text] - 1, pages[text]});
  }
  CachedBatch cached{cache, {}, &cache, cache.batch_of(rows)};
  context.decode.cached = &cached;
  const Tensor got = attention.forward(Variable(x.reshape({8, 1, 32})), context).y.data();
  expect_close(got, want.reshape({8, 1, 32}), Tolerance{1e-5, 1e-5});
}

}  // namespace
}  // namespace megatron
