#include "megatron/training/memory_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megatron {
namespace {

using testing::ElementsAre;

TransformerConfig gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t seq, int64_t vocab) {
  TransformerConfig config;
  config.num_layers = layers;
  config.hidden_size = hidden;
  config.num_attention_heads = heads;
  config.num_query_groups = heads;
  config.seq_length = seq;
  config.padded_vocab_size = vocab;
  return config;
}

TransformerConfig gpt_345m() { return gpt(24, 1024, 16, 1024, 50304); }
TransformerConfig gpt_3() { return gpt(96, 12288, 96, 2048, 51200); }
constexpr double kMegabyte = 1 << 20;

TEST(MemoryReportTest, Gpt345MOnTwoTensorRanks) {
  MemoryLayout layout{.micro_batch_size = 4, .tp = 2, .dp = 4, .use_distributed_optimizer = true};
  TheoreticalMemory memory = theoretical_memory(gpt_345m(), layout);
  EXPECT_NEAR(memory.layer_parameters / 1e8, 3.0209, 5e-5);
  EXPECT_NEAR(memory.total_parameters / 1e8, 3.53602, 5e-6);
  EXPECT_NEAR(memory.most_loaded_parameters / 1e8, 1.76801, 5e-6);
  EXPECT_EQ(memory.bytes_per_parameter, 9.0);
  EXPECT_THAT(report_lines(memory, layout),
              ElementsAre("Number of parameters in billions: 0.35",
                          "Number of parameters in most loaded shard in billions: 0.1768",
                          "Activation memory footprint per transformer layer: 68.0 MB",
                          "Number of in-flight microbatches: 1",
                          "Theoretical memory footprints: weight and optimizer=1517.49 MB, "
                          "activation=2035.02 MB, total=3552.51 MB"));

  layout.use_distributed_optimizer = false;
  memory = theoretical_memory(gpt_345m(), layout);
  EXPECT_EQ(memory.bytes_per_parameter, 18.0);
  EXPECT_NEAR(memory.weight_and_optimizer_bytes / kMegabyte, 3034.99, 0.005);
  EXPECT_NEAR(memory.total_bytes() / kMegabyte, 5070.00, 0.01);
}

TEST(MemoryReportTest, Gpt3OnSixteenStages) {
  const MemoryLayout layout{
      .num_microbatches = 192, .tp = 8, .pp = 16, .dp = 8, .use_distributed_optimizer = true};
  const TheoreticalMemory memory = theoretical_memory(gpt_3(), layout);
  EXPECT_NEAR(memory.layer_parameters / 1e11, 1.73951, 5e-6);
  EXPECT_NEAR(memory.total_parameters / 1e11, 1.74580, 5e-6);
  EXPECT_NEAR(memory.most_loaded_parameters / 1e9, 1.43763, 5e-6);
  EXPECT_EQ(memory.in_flight_microbatches, 16);
  EXPECT_THAT(report_lines(memory, layout),
              ElementsAre("Number of parameters in billions: 174.58",
                          "Number of parameters in most loaded shard in billions: 1.4376",
                          "Number of parameters in other shards in billions: 1.3590",
                          "Activation memory footprint per transformer layer: 102.0 MB",
                          "Number of in-flight microbatches: 16",
                          "Theoretical memory footprints: weight and optimizer=10282.77 MB, "
                          "activation=9840.03 MB, total=20122.80 MB"));
}

TEST(MemoryReportTest, InterleavingHoldsMoreMicrobatches) {
  const MemoryLayout layout{.num_microbatches = 192,
                            .tp = 8,
                            .pp = 8,
                            .vp = 3,
                            .dp = 8,
                            .use_distributed_optimizer = true};
  const TheoreticalMemory memory = theoretical_memory(gpt_3(), layout);
  EXPECT_EQ(memory.in_flight_microbatches, 11);
  EXPECT_THAT(report_lines(memory, layout),
              ElementsAre("Number of parameters in billions: 174.58",
                          "Number of parameters in most loaded shard in billions: 2.7966",
                          "Number of parameters in other shards in billions: 2.7180",
                          "Activation memory footprint per transformer layer: 102.0 MB",
                          "Memory penalty from interleaved schedule: 1.29",
                          "Number of in-flight microbatches: 11",
                          "Theoretical memory footprints: weight and optimizer=20003.03 MB, "
                          "activation=12679.02 MB, total=32682.05 MB"));
}

TEST(MemoryReportTest, FewMicrobatchesFillOnlyPartOfThePipeline) {
  const MemoryLayout full{.num_microbatches = 8, .tp = 8, .pp = 8};
  const MemoryLayout half{.num_microbatches = 4, .tp = 8, .pp = 8};
  EXPECT_EQ(theoretical_memory(gpt_3(), half).in_flight_microbatches, 4);
  EXPECT_DOUBLE_EQ(theoretical_memory(gpt_3(), half).activation_bytes,
                   theoretical_memory(gpt_3(), full).activation_bytes / 2);
}

}  // namespace
}  // namespace megatron
