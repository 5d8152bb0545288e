#include "megatron/transformer/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "megatron/kernels/matmul.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/latent_attention.h"
#include "megatron/parallel/tensor/rounded_linear.h"
#include "megatron/transformer/kv_cache.h"
#include "megatron/transformer/rotary_frequencies.h"
#include "tests/ops/op_case.h"
#include "tests/transformer/tiny_stack.h"

namespace megatron {
namespace {

TransformerConfig latent_config(int64_t value_channels) {
  TransformerConfig c = tiny_config();
  c.multi_latent_attention = true;
  c.position_embedding_type = PositionEmbedding::kRope;
  c.q_lora_rank = 12;
  c.kv_lora_rank = 10;
  c.qk_head_dim = 6;
  c.qk_pos_emb_head_dim = 4;
  c.v_head_dim = value_channels;
  c.qk_layernorm = true;
  return resolved(c);
}

Tensor angles_of(const TransformerConfig& c) {
  return rotary_table(c.max_position_embeddings,
                      rotary_frequencies(c.rotary_dim(), c.rotary_base, {}, c.seq_length));
}

constexpr LatentHeads kHeads = {.num_heads = 3, .unrotated = 4, .rotated = 2, .value = 5};

TEST(LatentHeadsTest, JoinHasTheRightGradients) {
  const Tensor table = rotary_table(8, {.frequencies = {1.0f}});
  const Tensor ids = tensor_of(std::vector<int64_t>{0, 1, 2, 5, 6, 7}, {2, 3});
  check(
      {.name = "join_latent_heads",
       .inputs = {random_normal({3, 2, 3 * 6}, {.seed = 1}),
                  random_normal({3, 2, 3 * 9}, {.seed = 2}), random_normal({3, 2, 2}, {.seed = 3})},
       .op =
           [=](const std::vector<Variable>& in) {
             return join_latent_heads(in[0], in[1], in[2], kHeads, table, {.position_ids = ids});
           },
       .terms = 8});
}

// A group holds a head's query, key and value, each of 6 channels; the value ends with a zero.
TEST(LatentHeadsTest, JoinPadsAndRotates) {
  const Tensor table = rotary_table(8, {.frequencies = {1.0f}});
  const Tensor q = random_normal({2, 1, 3 * 6}, {.seed = 1});
  const Tensor kv = random_normal({2, 1, 3 * 9}, {.seed = 2});
  const Tensor key = random_normal({2, 1, 2}, {.seed = 3});
  const Tensor y =
      join_latent_heads(Variable(q), Variable(kv), Variable(key), kHeads, table, {}).data();
  ASSERT_EQ(y.shape(), (Shape{2, 1, 3 * 18}));
  const auto at = [&](int64_t head, int64_t channel) {
    return element(y, 3 * 18 + head * 18 + channel);  // of token 1
  };
  const double cosine = std::cos(1.0);
  const double sine = std::sin(1.0);
  for (int64_t head = 0; head < 3; ++head) {
    const auto query = [&](int64_t i) { return element(q, 18 + head * 6 + i); };
    EXPECT_EQ(at(head, 0), query(0));
    EXPECT_NEAR(at(head, 4), query(4) * cosine - query(5) * sine, 1e-6);
    EXPECT_NEAR(at(head, 5), query(5) * cosine + query(4) * sine, 1e-6);
    EXPECT_EQ(at(head, 6), element(kv, 27 + head * 9));
    EXPECT_NEAR(at(head, 10), element(key, 2) * cosine - element(key, 3) * sine, 1e-6);
    EXPECT_EQ(at(head, 12), element(kv, 27 + head * 9 + 4));
    EXPECT_EQ(at(head, 17), 0);
  }
}

TEST(LatentHeadsTest, ChannelsHaveTheRightGradients) {
  check({.name = "channels",
         .inputs = {random_normal({3, 2, 10}, {.seed = 1})},
         .op = [](const std::vector<Variable>& in) {
           const auto [first, second] = split_channels(in[0], 4);
           return join_channels(scale(second, 2.0f), first_channels(first, 2, 1));
         }});
}

// Runs a text through a cache in pieces of these sizes.
Tensor cached_in_pieces(const TransformerConfig& c, const LatentAttention& attention,
                        const Tensor& x, const std::vector<int64_t>& pieces, KvCacheType type) {
  const NoGrad no_grad;
  KvCache cache(c, whole_model(1), 1, 8, 4, Stream{}, type);
  const std::vector<int32_t> pages = {5, 2, 7, 1};
  RandomState random(1);
  ForwardContext context;
  context.random = &random;
  context.sequence.rotary_table = angles_of(c);
  Tensor y = empty_like(x);
  int64_t before = 0;
  for (const int64_t count : pieces) {
    const PagedRow row{.num_tokens = count, .before = before, .pages = pages};
    CachedBatch cached{cache, cache.batch_of({&row, 1})};
    context.decode.cached = &cached;
    std::vector<int64_t> positions;
    for (int64_t i = 0; i < count; ++i) positions.push_back(before + i);
    context.sequence.position_ids = tensor_of(positions, {1, count});
    Tensor part = y.slice(before, count);
    copy_into(part, attention.forward(Variable(x.slice(before, count)), context).y.data());
    before += count;
  }
  EXPECT_EQ(before, x.size(0));
  return y;
}

// Pieces whose latents are projected up, without earlier tokens and with some, and pieces that
// absorb the projection.
const std::vector<std::vector<int64_t>> kPieces = {{kLength}, {1, 11}, {1, 2, 1, 2, 1, 2, 1, 2},
                                                   {7, 5},    {11, 1}, {2, 9, 1}};

// The adapters of all projections, none of whose values are zero.
void fill_adapters(const LatentAttention& attention) {
  uint64_t seed = 20;
  for (const Parameter& parameter : named_parameters(attention)) {
    if (!parameter.info.is_adapter) continue;
    Variable adapter = parameter.variable;
    adapter.set_data(random_normal(adapter.shape(), {.seed = ++seed, .stddev = 0.3f}));
  }
}

TEST(LatentAttentionTest, LinearQkvStandsForTheProjectionsInItsPlace) {
  for (const int64_t q_lora_rank : {0, 12}) {
    TransformerConfig c = latent_config(8);
    c.q_lora_rank = q_lora_rank;
    c.lora_rank = 2;
    const LatentAttention attention(c, kDecoder.place(0), {}, Stream{});
    std::vector<std::string> names;
    for (const Parameter& parameter : named_parameters(attention)) {
      if (parameter.info.is_adapter) names.push_back(parameter.name);
    }
    std::vector<std::string> want;
    for (const char* layer :
         q_lora_rank == 0
             ? std::vector<const char*>{"linear_q_proj", "linear_kv_down_proj", "linear_kv_up_proj"}
             : std::vector<const char*>{"linear_q_down_proj", "linear_q_up_proj",
                                        "linear_kv_down_proj", "linear_kv_up_proj"}) {
      want.push_back(std::string(layer) + ".adapter.linear_in.weight");
      want.push_back(std::string(layer) + ".adapter.linear_out.weight");
    }
    std::ranges::sort(names);
    std::ranges::sort(want);
    EXPECT_EQ(names, want);
  }
}

// Merged into the weights, adapters give the same.
TEST(LatentAttentionTest, AdaptersAddToTheProjections) {
  for (const int64_t q_lora_rank : {0, 12}) {
    TransformerConfig c = latent_config(8);
    c.q_lora_rank = q_lora_rank;
    const LatentAttention merged(c, kDecoder.place(0), {}, Stream{});
    c.lora_rank = 2;
    c.lora_alpha = 3;
    const LatentAttention attention(c, kDecoder.place(0), {}, Stream{});
    initialize(attention, 2);
    initialize(merged, 2);
    fill_adapters(attention);
    std::map<std::string, Tensor> weights;
    for (const Parameter& parameter : named_parameters(attention)) {
      weights[parameter.name] = parameter.variable.data();
    }
    for (const Parameter& parameter : named_parameters(merged)) {
      Tensor sum = copied(weights.at(parameter.name));
      const std::string layer = parameter.name.substr(0, parameter.name.rfind('.'));
      if (const auto a = weights.find(layer + ".adapter.linear_in.weight"); a != weights.end()) {
        const Tensor& b = weights.at(layer + ".adapter.linear_out.weight");
        Tensor product = empty_like(sum);
        kernels::matmul(product.view(), b.view(), kernels::Transpose::kNo,
                        std::as_const(a->second).view(), kernels::Transpose::kNo, ConstView{}, 0,
                        Stream{});
        add_inplace(sum, product, 1.5f);
      }
      Variable weight = parameter.variable;
      weight.set_data(sum);
    }
    const Tensor x = random_normal({kLength, 1, 32}, {.seed = 1});
    RandomState random(1);
    ForwardContext context;
    context.random = &random;
    context.sequence.rotary_table = angles_of(c);
    const Tensor want = merged.forward(Variable(x), context).y.data();
    expect_close(attention.forward(Variable(x), context).y.data(), want, Tolerance{1e-5, 1e-5});
    for (const auto& pieces : kPieces) {
      expect_close(cached_in_pieces(c, attention, x, pieces, KvCacheType::kModel), want,
                   Tolerance{2e-5, 2e-5});
    }
  }
}

TEST(LatentAttentionTest, HasTheRightGradients) {
  for (const int64_t value_channels : {8, 12}) {  // fewer than keys have, and more
    for (const int64_t q_lora_rank : {0, 12}) {
      TransformerConfig c = latent_config(value_channels);
      c.q_lora_rank = q_lora_rank;
      const LatentAttention attention(c, kDecoder.place(0), {}, Stream{});
      initialize(attention, 2);
      check({.name = "latent_attention",
             .inputs = {random_hidden(5, 32, 1)},
             .op =
                 [&](const std::vector<Variable>& in) {
                   RandomState random(1);
                   ForwardContext context;
                   context.random = &random;
                   context.sequence.rotary_table = angles_of(c);
                   return attention.forward(in[0], context).y;
                 },
             .terms = 256,
             .dtypes = {},
             .step = 0x1p-7,
             .gradient_tolerance = 2e-3});
    }
  }
}

TEST(LatentAttentionTest, PiecesAreAbsorbedWhereThatIsLessWork) {
  const LatentHeads heads = {.num_heads = 128, .unrotated = 128, .rotated = 64, .value = 128};
  EXPECT_FALSE(is_absorbed(2, 0, heads, 512));
  EXPECT_TRUE(is_absorbed(1, 0, heads, 512));
  EXPECT_TRUE(is_absorbed(64, 4096, heads, 512));
  EXPECT_FALSE(is_absorbed(512, 4096, heads, 512));
  // As many multiply-adds: 1 (4 + 4) 5 = 4 (1 + 4) (2 5 - 4 - 4).
  const LatentHeads even = {.num_heads = 1, .unrotated = 4, .rotated = 2, .value = 4};
  EXPECT_FALSE(is_absorbed(4, 1, even, 5));
  EXPECT_TRUE(is_absorbed(4, 2, even, 5));
  EXPECT_FALSE(is_absorbed(5, 1, even, 5));
  const LatentHeads small = latent_heads(latent_config(8), 1);
  EXPECT_FALSE(is_absorbed(kLength, 0, small, 10));
  EXPECT_FALSE(is_absorbed(11, 1, small, 10));
  EXPECT_TRUE(is_absorbed(2, 1, small, 10));
  EXPECT_TRUE(is_absorbed(5, 7, small, 10));
}

TEST(LatentAttentionTest, CachedTokensAttendAsTheWhole) {
  for (const int64_t value_channels : {8, 12}) {
    for (const int64_t q_lora_rank : {0, 12}) {
      TransformerConfig c = latent_config(value_channels);
      c.q_lora_rank = q_lora_rank;
      c.attention_window = q_lora_rank;  // of 12 tokens, which all see, and none
      c.rope_scaling.factor = 4;
      c.rope_scaling.mscale_all_dim = 1;
      c.softmax_type = SoftmaxType::kOffByOne;
      c.attn_logit_softcapping = 2;
      const LatentAttention attention(c, kDecoder.place(0), {}, Stream{});
      initialize(attention, 2);
      const Tensor x = random_normal({kLength, 1, 32}, {.seed = 1});
      RandomState random(1);
      ForwardContext context;
      context.random = &random;
      context.sequence.rotary_table = angles_of(c);
      const Tensor want = attention.forward(Variable(x), context).y.data();
      for (const auto& pieces : kPieces) {
        expect_close(cached_in_pieces(c, attention, x, pieces, KvCacheType::kModel), want,
                     Tolerance{1e-5, 1e-5});
      }
    }
  }
}

// A token sees the rounded latents of all tokens, however its text was divided.
TEST(LatentAttentionTest, PiecesReadTheSameLatentsInFp8) {
  const TransformerConfig c = latent_config(8);
  const LatentAttention attention(c, kDecoder.place(0), {}, Stream{});
  initialize(attention, 2);
  const Tensor x = random_normal({kLength, 1, 32}, {.seed = 1});
  const Tensor want = cached_in_pieces(c, attention, x, kPieces[0], KvCacheType::kFp8);
  for (const auto& pieces : kPieces) {
    expect_close(cached_in_pieces(c, attention, x, pieces, KvCacheType::kFp8), want,
                 Tolerance{1e-5, 1e-5});
  }
  const Tensor exact = cached_in_pieces(c, attention, x, kPieces[0], KvCacheType::kModel);
  expect_close(want, exact, Tolerance{0.1, 0.1});
  double largest = 0;
  for (int64_t i = 0; i < want.numel(); ++i) {
    largest = std::max(largest, std::abs(element(want, i) - element(exact, i)));
  }
  EXPECT_GT(largest, 1e-4);  // it rounds
}

// In 8 bits the projection up is absorbed as it is multiplied; in FP8 inputs are rounded, too.
TEST(LatentAttentionTest, AbsorbsARoundedProjection) {
  const TransformerConfig c = latent_config(8);
  const LatentAttention attention(c, kDecoder.place(0), {}, Stream{});
  initialize(attention, 2);
  round_weights(attention, InferenceWeights::kInt8, Stream{});
  const Tensor x = random_normal({kLength, 1, 32}, {.seed = 1});
  const Tensor want = cached_in_pieces(c, attention, x, kPieces[0], KvCacheType::kModel);
  for (const auto& pieces : kPieces) {
    expect_close(cached_in_pieces(c, attention, x, pieces, KvCacheType::kModel), want,
                 Tolerance{1e-5, 1e-5});
  }
}

}  // namespace
}  // namespace megatron
