#include "megatron/training/context_estimate.h"

#include <gtest/gtest.h>

#include "megatron/training/step_estimate.h"

namespace megatron {
namespace {

constexpr ContextExchange kExchanges[] = {ContextExchange::kP2p, ContextExchange::kAllGather,
                                          ContextExchange::kAllToAll};

TransformerConfig gpt(int64_t seq) {
  TransformerConfig c;
  c.num_layers = 2;
  c.hidden_size = 1024;
  c.num_attention_heads = 8;
  c.seq_length = c.max_position_embeddings = seq;
  c.padded_vocab_size = 512;
  c.params_dtype = DType::kBFloat16;
  c.attention_dropout = 0;
  c.hidden_dropout = 0;
  return resolved(c);
}

// The calls of a rank are its part of the causal square.
TEST(ContextEstimateTest, PartsAreTheWholeWork) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const ContextExchange exchange : kExchanges) {
      for (const bool by_position : {false, true}) {
        double work = 0;
        for (const AttentionPart& part : attention_parts(
                 gpt(8192), {.context_parallel_size = ranks, .context_exchange = exchange},
                 by_position)) {
          work += part.work;
          EXPECT_GT(part.keys, 0);
          EXPECT_LE(part.keys, 8192);
        }
        EXPECT_NEAR(work, 1, 1e-12) << ranks << " " << by_position;
      }
    }
  }
}

// Of two ranks: the own block, a square of half of the sequence, and all queries with a quarter of
// the keys. With positions only chunks attend to chunks.
TEST(ContextEstimateTest, ARingMakesACallOfABlock) {
  const ParallelConfig two{.context_parallel_size = 2};
  const auto parts = attention_parts(gpt(4096), two, false);
  ASSERT_EQ(parts.size(), 2u);
  for (const AttentionPart& part : parts) {
    EXPECT_EQ(part.work, 0.5);
    EXPECT_EQ(part.keys, 1024);
    EXPECT_TRUE(part.has_square);
  }
  EXPECT_EQ(attention_parts(gpt(4096), two, true).size(), 5u);
}

// Ranks that exchange heads attend as one rank of a ring with their sequence.
TEST(ContextEstimateTest, NeighboursAttendAsARing) {
  const ParallelConfig levels{.context_parallel_size = 8,
                              .context_exchange = ContextExchange::kAllToAll,
                              .hierarchical_context_parallel_sizes = {4, 2}};
  const auto parts = attention_parts(gpt(4096), levels, false);
  ASSERT_EQ(parts.size(), 2u);
  for (const AttentionPart& part : parts) {
    EXPECT_EQ(part.work, 0.5);
    EXPECT_EQ(part.keys, 1024);
  }
  EXPECT_EQ(context_copy_bytes(levels, 1, 1), 32 + 40);
}

// Bytes of a token, of as many queries as keys: see docs/parallel.md.
TEST(ContextEstimateTest, CountsCopiesAndSums) {
  const auto bytes = [](int ranks, ContextExchange exchange) {
    return context_copy_bytes({.context_parallel_size = ranks, .context_exchange = exchange}, 1, 1);
  };
  EXPECT_EQ(bytes(1, ContextExchange::kP2p), 0);
  EXPECT_EQ(bytes(2, ContextExchange::kP2p), 40);
  EXPECT_EQ(bytes(3, ContextExchange::kP2p), 16 + 16 * 4);
  EXPECT_EQ(bytes(4, ContextExchange::kP2p), 16 + 26 * 4);
  EXPECT_EQ(bytes(2, ContextExchange::kAllGather), 44);
  EXPECT_EQ(bytes(2, ContextExchange::kAllToAll), 32);
  EXPECT_EQ(bytes(8, ContextExchange::kAllToAll), 32);
}

// Attention waits for what takes longer than its part that goes beside.
TEST(ContextEstimateTest, AttentionHidesWhatTravelsBeside) {
  const TransformerConfig config = gpt(4096);
  const ParallelConfig two{.context_parallel_size = 2};
  const auto communication = [&](double bytes, double forward, double backward) {
    return estimated_step(config, two, 1, 1, {}, DeviceType::kCuda, 1e12,
                          {.beside_attention = {{bytes, forward, backward}}})
        .communication;
  };
  const double attention = estimated_step(config, two, 1, 1, {}, DeviceType::kCuda, 1e12).attention;
  const double wait = communication(1e9, 0, 0);
  EXPECT_GT(wait, 0);
  EXPECT_NEAR(communication(2e9, 0, 0), 2 * wait, 1e-12);
  EXPECT_NEAR(communication(1e9, 1, 1), wait - attention, 1e-12);
  EXPECT_NEAR(communication(1e9, 1, 0) + communication(1e9, 0, 1), 2 * wait - attention, 1e-12);
  EXPECT_EQ(communication(1e3, 0.25, 0), 0);
}

}  // namespace
}  // namespace megatron
