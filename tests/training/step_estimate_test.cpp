#include "megatron/training/step_estimate.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace megatron {
namespace {

TransformerConfig step_estimate_gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t seq) {
  TransformerConfig c;
  c.num_layers = layers;
  c.hidden_size = hidden;
  c.num_attention_heads = heads;
  c.seq_length = c.max_position_embeddings = seq;
  c.padded_vocab_size = 50304;
  return resolved(c);
}

TEST(StepEstimateTest, RecomputeRunsTheLayersForwardAgain) {
  TransformerConfig config = step_estimate_gpt(24, 1024, 16, 1024);
  const auto step = [&] { return estimated_step(config, {}, 4, 8, {}, DeviceType::kCpu, 1e12); };
  EXPECT_EQ(step().recompute, 0);
  config.recompute_granularity = RecomputeGranularity::kFull;
  config.recompute_method = RecomputeMethod::kBlock;
  config.recompute_num_layers = 6;
  EXPECT_DOUBLE_EQ(step().recompute, (step().linear + step().attention) / 3 / 4);
}

TEST(StepEstimateTest, PartsThatAreRecomputedTakeTheirForwardPass) {
  TransformerConfig config = step_estimate_gpt(24, 1024, 16, 1024);
  config.recompute_granularity = RecomputeGranularity::kSelective;
  const auto step = [&](const char* part, DeviceType device) {
    config.recompute_modules = {part};
    return estimated_step(config, {}, 4, 8, {}, device, 1e12);
  };
  const double mlp = step("mlp", DeviceType::kCpu).recompute;
  EXPECT_DOUBLE_EQ(mlp, step("mlp", DeviceType::kCpu).linear / 3 * 8 / 12);
  EXPECT_EQ(step("layernorm", DeviceType::kCpu).recompute, 0);
  EXPECT_EQ(step("core_attn", DeviceType::kCuda).recompute, 0);
  // 8 h and 4 * 4 h bytes of each token and layer, at 85 % of 4.3 TB/s.
  const double norms = step("layernorm", DeviceType::kCuda).recompute;
  EXPECT_DOUBLE_EQ(norms, 24 * 32 * 1024 * (8.0 * 1024 / (0.85 * 4.3e12)));
  EXPECT_DOUBLE_EQ(step("activation", DeviceType::kCuda).recompute, 2 * norms);

  config.num_experts = 8;
  config.moe_router_topk = 2;
  config.moe_ffn_hidden_size = 1024;
  config.moe_shared_expert_intermediate_size = 1024;
  const double shared = step("shared_experts", DeviceType::kCpu).recompute;
  EXPECT_DOUBLE_EQ(shared, mlp / 4);
  EXPECT_DOUBLE_EQ(step("moe", DeviceType::kCpu).recompute, 3 * shared);
  EXPECT_EQ(step("mlp", DeviceType::kCpu).recompute, 0);
}

TEST(StepEstimateTest, StagesWaitForEachOther) {
  const TransformerConfig config = step_estimate_gpt(24, 1024, 16, 1024);
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
  const TransformerConfig config = step_estimate_gpt(24, 1024, 16, 1024);
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

// Inputs of layers that wait in host memory are copied beside the layers, whose work grows with the
// square of their size: copies of small layers are waited for.
TEST(StepEstimateTest, CopiesToTheHostAreHiddenBehindLargeLayers) {
  TransformerConfig config;
  config.num_layers = 4;
  config.seq_length = config.max_position_embeddings = 128;
  config.recompute_granularity = RecomputeGranularity::kFull;
  config.recompute_method = RecomputeMethod::kUniform;
  config.recompute_num_layers = 2;
  config.params_dtype = DType::kBFloat16;
  const auto recompute = [&](int64_t hidden, bool in_cpu) {
    TransformerConfig c = config;
    c.hidden_size = hidden;
    c.num_attention_heads = hidden / 64;
    c.checkpoint_in_cpu = in_cpu;
    c = resolved(c);
    c.padded_vocab_size = 128;
    return estimated_step(c, {}, 4, 8, {}, DeviceType::kCuda, 1e12);
  };
  EXPECT_EQ(recompute(8192, true).host_copies, 0);
  const StepEstimate small = recompute(128, false);
  // Two inputs of 128 numbers of 2 bytes for each of 4 x 8 x 128 tokens, at 50 GB/s, there and
  // back.
  const double copies = 2 * 128 * 2 * 4096 / 50e9;
  const double forward = (small.linear + small.attention + small.elementwise) / 3;
  const double waits =
      std::max(0.0, copies - forward) + std::max(0.0, copies - 2 * forward - small.recompute);
  EXPECT_GT(waits, 0);
  EXPECT_EQ(small.host_copies, 0);
  EXPECT_EQ(recompute(128, true).recompute, small.recompute);
  EXPECT_NEAR(recompute(128, true).host_copies, waits, 1e-12);
}

// The same of the activations of three of four layers; with heads of 64 and MLPs of 4h, 16 numbers
// for each of the hidden size.
TEST(StepEstimateTest, LayersWaitForCopiesOfTheirActivations) {
  TransformerConfig config;
  config.num_layers = 4;
  config.hidden_size = 512;
  config.num_attention_heads = 8;
  config.seq_length = config.max_position_embeddings = 128;
  config.params_dtype = DType::kBFloat16;
  config = resolved(config);
  config.padded_vocab_size = 128;
  const auto estimate = [&] {
    return estimated_step(config, {}, 4, 8, {}, DeviceType::kCuda, 1e12);
  };
  const StepEstimate plain = estimate();
  config.cpu_offloading_num_layers = 3;
  const double copies = 3 * 16 * 512 * 2 * 4096 / 50e9;
  const double forward = 0.75 * (plain.linear + plain.attention + plain.elementwise) / 3;
  EXPECT_GT(copies, 2 * forward);
  EXPECT_NEAR(estimate().host_copies, 2 * copies - 3 * forward, 1e-12);
}

TEST(StepEstimateTest, DocumentsTakeOwnKernels) {
  TransformerConfig config;
  config.num_layers = 2;
  config.hidden_size = 256;
  config.num_attention_heads = 2;
  config.attention_dropout = 0;
  config.seq_length = config.max_position_embeddings = 1024;
  config = resolved(config);
  config.padded_vocab_size = 128;
  const auto attention = [&](bool has_documents) {
    return estimated_step(config, {}, 4, 8, {}, DeviceType::kCuda, 1e12, {}, measured_gpu(),
                          has_documents)
        .attention;
  };
  EXPECT_NEAR(attention(true), attention(false) / 0.72, 1e-12);
}

}  // namespace
}  // namespace megatron
