#include "megatron/training/utilization.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

RunConfig tiny_gpt() {
  RunConfig run;
  run.transformer.num_layers = 8;
  run.transformer.hidden_size = 64;
  run.transformer.ffn_hidden_size = 256;
  run.transformer.num_attention_heads = run.transformer.num_query_groups = 4;
  run.transformer.kv_channels = 16;
  run.transformer.seq_length = 32;
  return run;
}

TEST(UtilizationTest, RecomputationRepeatsTheForwardPassOfTheLayers) {
  RunConfig run = tiny_gpt();
  EXPECT_EQ(hardware_operations_factor(run), 1.0);
  run.transformer.recompute_granularity = RecomputeGranularity::kSelective;
  EXPECT_EQ(hardware_operations_factor(run), 1.0);
  run.transformer.recompute_modules = {"layernorm", "mlp"};
  // A layer has h (8 h + 4 h + s) products, its MLP 8 h h of them.
  EXPECT_DOUBLE_EQ(hardware_operations_factor(run), 1 + 8.0 * 64 / (12 * 64 + 32) / 3);
  run.transformer.recompute_granularity = RecomputeGranularity::kFull;
  EXPECT_DOUBLE_EQ(hardware_operations_factor(run), 4.0 / 3.0);
  run.transformer.recompute_method = RecomputeMethod::kBlock;
  run.transformer.recompute_num_layers = 2;
  EXPECT_DOUBLE_EQ(hardware_operations_factor(run), 1 + 2.0 / 8 / 3);
  run.parallel.pipeline_model_parallel_size = 2;
  EXPECT_DOUBLE_EQ(hardware_operations_factor(run), 1 + 4.0 / 8 / 3);
  run.parallel.pipeline_model_parallel_size = 8;
  EXPECT_DOUBLE_EQ(hardware_operations_factor(run), 4.0 / 3.0);
}

TEST(UtilizationTest, TheOutputLayerIsNotRecomputed) {
  RunConfig run = tiny_gpt();
  run.transformer.recompute_granularity = RecomputeGranularity::kFull;
  run.transformer.padded_vocab_size = 1000;
  const double factor = hardware_operations_factor(run);
  EXPECT_GT(factor, 1.0);
  EXPECT_LT(factor, 4.0 / 3.0);
}

TEST(UtilizationTest, ThePeakOfACpuIsUnknown) {
  RunConfig run = tiny_gpt();
  run.optimizer.bf16 = true;
  EXPECT_EQ(peak_flops(run, Device{}), std::nullopt);
}

}  // namespace
}  // namespace megatron
