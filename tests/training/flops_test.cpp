#include "megatron/training/flops.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TransformerConfig flops_gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t seq,
                            int64_t vocab) {
  TransformerConfig config;
  config.num_layers = layers;
  config.hidden_size = hidden;
  config.num_attention_heads = heads;
  config.num_query_groups = heads;
  config.kv_channels = hidden / heads;
  config.ffn_hidden_size = 4 * hidden;
  config.seq_length = seq;
  config.padded_vocab_size = vocab;
  return config;
}

TEST(FlopsTest, Gpt3) {
  const TransformerConfig config = flops_gpt(96, 12288, 96, 2048, 51200);
  EXPECT_NEAR(standard_flops(config, 1536) / 1e18, 3.386197, 5e-7);
  EXPECT_NEAR(causal_flops(config, 1536) / 1e18, 3.340598, 5e-7);
  EXPECT_NEAR(tflops_per_device(standard_flops(config, 1536), 32.0, 1024), 103.3, 0.05);
}

TEST(FlopsTest, Gpt345M) {
  const TransformerConfig config = flops_gpt(24, 1024, 16, 1024, 50304);
  EXPECT_NEAR(standard_flops(config, 32) / 1e13, 7.939677, 5e-7);
  EXPECT_NEAR(causal_flops(config, 32) / 1e13, 7.444896, 5e-7);
}

// Scores of a window, counted token by token.
TEST(FlopsTest, WindowsLeaveScoresOut) {
  TransformerConfig config = flops_gpt(3, 8, 2, 100, 32);
  const double whole = causal_flops(config, 1);
  const double scores = 6 * 100 * 100 * 8;  // of a layer
  EXPECT_EQ(attention_layers(config), 3);
  config.attention_window = 20;
  EXPECT_DOUBLE_EQ(attention_layers(config), 3 * (2 * 20 * 100 - 20 * 20) / 10000.0);
  config.window_layers = {1, 0, 1};
  EXPECT_DOUBLE_EQ(attention_layers(config), 1 + 2 * 0.36);
  EXPECT_DOUBLE_EQ(causal_flops(config, 1), whole - 2 * 0.64 * scores);
  config.attention_window = 100;
  EXPECT_EQ(attention_layers(config), 3);
}

// Of one layer in each stack, counted product by product.
TEST(FlopsTest, EncoderAndDecoder) {
  TransformerConfig config = flops_gpt(1, 8, 2, 6, 32);
  config.decoder_num_layers = 1;
  config.decoder_seq_length = 4;
  const double encoder = 6 * (4 * 8 * 8 + 2 * 8 * 32) + 2 * 6 * 6 * 8;
  const double decoder_itself = 4 * (4 * 8 * 8 + 2 * 8 * 32) + 4 * 4 * 8;  // half of the square
  const double cross = 4 * 2 * 8 * 8 + 6 * 2 * 8 * 8 + 2 * 4 * 6 * 8;
  const double logits = 4 * 8 * 32;
  // A multiply-add is two operations; the backward pass costs twice the forward pass.
  EXPECT_DOUBLE_EQ(encoder_decoder_flops(config, 3),
                   3 * 6 * (encoder + decoder_itself + cross + logits));
}

// Three chunks of four tokens, the first one shorter, two neighbours of eight tokens each; one
// layer attends to them. Product by product.
TEST(FlopsTest, Neighbours) {
  TransformerConfig config = flops_gpt(1, 8, 2, 10, 32);
  const double plain = causal_flops(config, 5);
  config.retro.add_retriever = true;
  config.retro.layer_numbers = {1};
  config.retro.chunk_length = 4;
  config.retro.encoder_layers = 2;
  const double tokens = 3 * 2 * 8;
  const double encoder = 2 * (tokens * (4 * 8 * 8 + 2 * 8 * 32) + 2 * tokens * 8 * 8);
  const double to_chunks = (tokens + 12) * 2 * 8 * 8 + 2 * tokens * 4 * 8;
  const double of_chunks = (12 + tokens) * 2 * 8 * 8 + 2 * 12 * 16 * 8;
  const double all = 5 * 6 * (encoder + to_chunks + of_chunks);
  EXPECT_DOUBLE_EQ(neighbor_flops(config, 5), all);
  EXPECT_DOUBLE_EQ(causal_flops(config, 5), plain + all);
  config.retro.attention_gate = 0;
  EXPECT_EQ(neighbor_flops(config, 5), 0);
}

// A layer and one of a further token, product by product.
TEST(FlopsTest, LatentAttentionAndFurtherTokens) {
  TransformerConfig config = flops_gpt(1, 8, 2, 6, 32);
  config.multi_latent_attention = true;
  config.q_lora_rank = 7;
  config.kv_lora_rank = 6;
  config.qk_head_dim = 3;
  config.qk_pos_emb_head_dim = 2;
  config.v_head_dim = 4;
  config.mtp_num_layers = 1;
  const double down_and_up = 7 * (8 + 2 * 5) + 8 * (6 + 2) + 6 * 2 * (3 + 4) + 2 * 4 * 8;
  EXPECT_EQ(attention_products(config), down_and_up);
  const double layer = 6 * (down_and_up + 2 * 8 * 32) + 6 * 3 * 2 * (5 + 4);  // half of the square
  const double logits = 6 * 8 * 32;
  EXPECT_DOUBLE_EQ(causal_flops(config, 3),
                   3 * 6 * (layer + logits + layer + 6 * 2 * 8 * 8 + logits));
  EXPECT_EQ(standard_flops(config, 3), causal_flops(config, 3));
  config.q_lora_rank = 0;
  EXPECT_EQ(attention_products(config), down_and_up - 7 * (8 + 2 * 5) + 8 * 2 * 5);
}

TEST(FlopsTest, GatedMlpHasThreeMatrices) {
  TransformerConfig config = flops_gpt(2, 64, 4, 32, 128);
  const double plain = causal_flops(config, 8);
  config.activation = Activation::kSwiglu;
  EXPECT_DOUBLE_EQ(causal_flops(config, 8) - plain, 6.0 * 8 * 32 * 2 * 64 * 256);
}

// Each token goes through its own experts and the shared one; the router is not counted.
TEST(FlopsTest, CountTheExpertsOfAToken) {
  TransformerConfig config = flops_gpt(4, 16, 2, 8, 32);
  config.activation = Activation::kSwiglu;
  config.num_experts = 8;
  config.moe_router_topk = 2;
  config.moe_ffn_hidden_size = 12;
  config.moe_shared_expert_intermediate_size = 8;
  config.moe_layer_freq = {0, 1, 1, 0};
  TransformerConfig dense = config;
  dense.num_experts = 0;
  dense.ffn_hidden_size = (2 * config.ffn_hidden_size + 2 * (2 * 12 + 8)) / 4;
  EXPECT_DOUBLE_EQ(causal_flops(config, 5), causal_flops(dense, 5));
  EXPECT_DOUBLE_EQ(standard_flops(config, 5), causal_flops(config, 5));
}

}  // namespace
}  // namespace megatron
