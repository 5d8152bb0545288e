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
  const auto step = [&] { return estimated_step(config, {}, 4, 8, 0, DeviceType::kCpu, 1e12); };
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
    return estimated_step(config, parallel, 4, 8, 0, DeviceType::kCpu, 1e12);
  };
  const StepEstimate alone = step();
  parallel.pipeline_model_parallel_size = 4;
  // The last stage has the head besides its layers.
  const double last = (alone.total() - alone.head) / 4 + alone.head;
  EXPECT_NEAR(step().total(), last * (1 + 3.0 / 8), 1e-9 * last);
  parallel.decoder_last_pipeline_num_layers = 3;
  EXPECT_EQ(step().head, 0);  // another stage takes longer
}

}  // namespace
}  // namespace megatron
