#include "megatron/training/step_estimate.h"

#include <gtest/gtest.h>

namespace megatron {
namespace {

TransformerConfig gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t seq) {
  TransformerConfig c;
  c.num_layers = layers;
  c.hidden_size = hidden;
  c.num_attention_heads = heads;
  c.seq_length = c.max_position_embeddings = seq;
  c.padded_vocab_size = 50304;
  return resolved(c);
}

TEST(StepEstimateTest, RecomputeRunsTheLayersForwardAgain) {
  TransformerConfig config = gpt(24, 1024, 16, 1024);
  const auto step = [&] { return estimated_step(config, {}, 4, 8, {}, DeviceType::kCpu, 1e12); };
  EXPECT_EQ(step().recompute, 0);
  config.recompute_granularity = RecomputeGranularity::kFull;
  config.recompute_method = RecomputeMethod::kBlock;
  config.recompute_num_layers = 6;
  EXPECT_DOUBLE_EQ(step().recompute, (step().linear + step().attention) / 3 / 4);
}

TEST(StepEstimateTest, StagesWaitForEachOther) {
  const TransformerConfig config = gpt(24, 1024, 16, 1024);
  ParallelConfig parallel;
  const auto step = [&] {
    return estimated_step(config, parallel, 4, 8, {}, DeviceType::kCpu, 1e12);
  };
  const StepEstimate alone = step();
  parallel.pipeline_model_parallel_size = 4;
  // The last stage has the head besides its layers.
  const double last = (alone.total() - alone.head) / 4 + alone.head;
  EXPECT_NEAR(step().total(), last * (1 + 3.0 / 8), 1e-9 * last);
  parallel.decoder_last_pipeline_num_layers = 3;
  EXPECT_EQ(step().head, 0);  // another stage takes longer
}

TEST(StepEstimateTest, AnUpdateIsTrafficProductsAndTheHost) {
  const TransformerConfig config = gpt(24, 1024, 16, 1024);
  const auto optimizer = [&](const UpdateWork& work, DeviceType device) {
    return estimated_step(config, {}, 4, 8, work, device, 1e12).optimizer;
  };
  const auto on_gpu = [&](const UpdateWork& work) { return optimizer(work, DeviceType::kCuda); };
  const double traffic = on_gpu({.device_bytes = 1e12});
  EXPECT_NEAR(traffic, 1 / (4.3 * 0.9), 1e-9);
  EXPECT_NEAR(on_gpu({.device_bytes = 1e12, .bf16_flops = 660e12}), traffic + 1, 1e-9);
  EXPECT_NEAR(on_gpu({.fp32_flops = 50e12}), 1, 1e-9);
  EXPECT_NEAR(on_gpu({.host_bytes = 60e9, .bus_bytes = 50e9}), 2, 1e-9);
  EXPECT_NEAR(on_gpu({.host_bytes = 30e9, .bus_bytes = 150e9}), 3, 1e-9);
  EXPECT_EQ(
      optimizer({.device_bytes = 1e12, .bf16_flops = 2e12, .fp32_flops = 1e12}, DeviceType::kCpu),
      3);
}

}  // namespace
}  // namespace megatron
