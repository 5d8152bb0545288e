// The plan of memory and traffic for layouts of ranks, in numbers that follow from the formulas,
// and against peaks of a GPU.
#include <gtest/gtest.h>

#include "megatron/models/plan/traffic.h"
#include "megatron/models/plan/training_plan.h"
#include "tests/models/gpt/small_config.h"

namespace megatron {
namespace {

TransformerConfig gpt(int64_t layers, int64_t hidden, int64_t heads, int64_t seq, int64_t vocab) {
  TransformerConfig c;
  c.num_layers = layers;
  c.hidden_size = hidden;
  c.num_attention_heads = heads;
  c.seq_length = c.max_position_embeddings = seq;
  c.padded_vocab_size = vocab;
  c.hidden_dropout = c.attention_dropout = 0;
  c.params_dtype = DType::kBFloat16;
  return resolved(c);
}

Traffic whole_traffic(const PlannedTraining& training, int64_t stage) {
  return traffic(training, stage, dry_iteration(training, stage));
}
Traffic exposed_part(const PlannedTraining& training, int64_t stage) {
  return exposed_traffic(training, stage, dry_iteration(training, stage));
}

double gibibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// What one H200 took on 2026-11-24 (docs/gpu-results/2026-11-24-main-params.txt).
TEST(GptPlan, IsWhatTheGpuTook) {
  ParallelConfig parallel;
  parallel.accumulate_allreduce_grads_in_fp32 = true;
  const OptimizerConfig adam;
  const auto planned = [&](const TransformerConfig& config, int64_t micro_batch_size) {
    return gibibytes(rank_memory({.transformer = config,
                                  .parallel = parallel,
                                  .optimizer = adam,
                                  .micro_batch_size = micro_batch_size,
                                  .num_microbatches = 2,
                                  .device = DeviceType::kCuda},
                                 0)
                         .total_bytes());
  };
  EXPECT_NEAR(planned(gpt(24, 1024, 16, 1024, 50304), 32), 30.02, 0.03 * 30.02);
  EXPECT_NEAR(planned(gpt(48, 1600, 25, 1024, 50304), 16), 61.39, 0.03 * 61.39);
  EXPECT_NEAR(planned(gpt(24, 2048, 16, 2048, 50304), 8), 44.27, 0.03 * 44.27);
}

class GptPlanLayoutTest : public testing::Test {
 protected:
  PlannedTraining training() const {
    return {.transformer = config_,
            .parallel = parallel_,
            .optimizer = adam_,
            .micro_batch_size = 16,
            .num_microbatches = num_microbatches_,
            .device = DeviceType::kCuda,
            .is_deterministic = is_deterministic_};
  }
  RankMemory plan(int64_t stage) const { return rank_memory(training(), stage); }
  static int64_t activations(const RankMemory& memory) {
    return memory.bytes(MemoryCategory::kActivations);
  }

  TransformerConfig config_ = gpt(16, 1024, 16, 1024, 50304);
  ParallelConfig parallel_;
  OptimizerConfig adam_;
  int64_t num_microbatches_ = 8;
  bool is_deterministic_ = false;
};

// 16 samples, 16 heads, 2 bytes for each pair of 1024 positions.
TEST_F(GptPlanLayoutTest, DeterministicAttentionHasScratchForEveryPair) {
  const auto scratch = [&] {
    constexpr auto kWorkspace = static_cast<size_t>(MemoryCategory::kWorkspace);
    return dry_iteration(training(), 0).stats.peak_by_category[kWorkspace];
  };
  const int64_t atomic = scratch();
  is_deterministic_ = true;
  const int64_t queries = int64_t{16} * 1024 * 1024 * 4;
  EXPECT_EQ(scratch() - atomic, int64_t{16} * 16 * 1024 * 1024 * 2 - queries);
}

TEST_F(GptPlanLayoutTest, TensorRanksShareMatricesAndTheirActivations) {
  config_.padded_vocab_size = 8192;  // one piece of logits
  const RankMemory whole = plan(0);
  parallel_.tensor_model_parallel_size = 2;
  const RankMemory half = plan(0);
  EXPECT_GT(half.num_parameters, whole.num_parameters / 2);  // norms and positions are not shared
  EXPECT_LT(half.num_parameters, whole.num_parameters / 2 + 2 * 1024 * 1024);
  // Of 32 bytes per token and element of the residual stream, 24 are shared.
  const double kept =
      static_cast<double>(activations(half)) / static_cast<double>(activations(whole));
  EXPECT_NEAR(kept, 20.0 / 32.0, 0.02);
  parallel_.sequence_parallel = true;
  EXPECT_NEAR(static_cast<double>(activations(plan(0))),
              static_cast<double>(activations(whole)) / 2,
              0.01 * static_cast<double>(activations(whole)));
}

TEST_F(GptPlanLayoutTest, StagesHoldTheLayersAndWhatIsInFlight) {
  parallel_.pipeline_model_parallel_size = 4;
  int64_t parameters = 0;
  for (int64_t stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(plan(stage).num_layers, 4);
    EXPECT_EQ(plan(stage).microbatches_in_flight, static_cast<double>(4 - stage));
    parameters += plan(stage).num_parameters;
  }
  // The last stage has a copy of the tied embedding.
  EXPECT_EQ(parameters, num_model_parameters(config_) + 50304 * 1024);

  num_microbatches_ = 2;
  EXPECT_EQ(plan(0).microbatches_in_flight, 2);
}

TEST_F(GptPlanLayoutTest, ZeroBubbleTakesTheMemoryOfTheFirstStage) {
  parallel_.pipeline_model_parallel_size = 4;
  const int64_t first = activations(plan(0));
  std::vector<int64_t> before;
  for (int64_t stage = 0; stage < 3; ++stage) before.push_back(activations(plan(stage)));
  parallel_.enable_zero_bubble = true;
  for (int64_t stage = 0; stage < 3; ++stage) {
    if (stage > 0) {
      EXPECT_GT(activations(plan(stage)), before[static_cast<size_t>(stage)]) << stage;
    }
    EXPECT_LE(static_cast<double>(activations(plan(stage))), 1.05 * static_cast<double>(first));
  }
}

// In inputs of a layer, 16 samples of 1024 x 1024 in bf16.
TEST_F(GptPlanLayoutTest, InputsOnTheHostLeaveTwoOnTheDevice) {
  constexpr int64_t kInput = int64_t{16} * 1024 * 1024 * 2;
  config_.padded_vocab_size = 8192;  // the peak is in a layer
  recompute(config_, RecomputeMethod::kUniform, 1);
  const auto planned = [&](int64_t stage) {
    config_.checkpoint_in_cpu = false;
    const int64_t before = activations(plan(stage));
    EXPECT_EQ(plan(stage).host_bytes(), 0);
    config_.checkpoint_in_cpu = true;
    return std::pair{(before - activations(plan(stage))) / kInput,
                     plan(stage).host_bytes() / kInput};
  };
  using FreedAndHeld = std::pair<int64_t, int64_t>;
  EXPECT_EQ(planned(0), FreedAndHeld(16 - 2, 16));
  // Stages of 4 layers: 4 microbatches on the first, and one on the last. On the first the peak is
  // behind the last layer: an input of another microbatch stays, and one is there ahead of its
  // layer.
  parallel_.pipeline_model_parallel_size = 4;
  EXPECT_EQ(planned(0), FreedAndHeld(16 - 4, 16));
  EXPECT_EQ(planned(3), FreedAndHeld(4 - 2, 4));
  // Chunks of two layers. The first has 8 microbatches at most, the second 4, at another moment.
  parallel_.num_layers_per_virtual_pipeline_stage = 2;
  parallel_.virtual_pipeline_model_parallel_size = 2;
  EXPECT_EQ(planned(0).second, 2 * (8 + 4));
}

// In the same unit, of which a layer saves 16: two of its norms' inputs, two of their outputs,
// queries, keys and values, what attention computes, and four times two of the MLP. The input of
// the first layer and the second norm's input of the last one stay, and small tensors.
TEST_F(GptPlanLayoutTest, LayersOnTheHostLeaveTwoOnTheDevice) {
  constexpr int64_t kInput = int64_t{16} * 1024 * 1024 * 2;
  config_.padded_vocab_size = 8192;  // the peak is in a layer
  const auto planned = [&](int64_t stage, int64_t num_layers) {
    config_.cpu_offloading_num_layers = 0;
    const int64_t before = activations(plan(stage));
    EXPECT_EQ(plan(stage).host_bytes(), 0);
    config_.cpu_offloading_num_layers = num_layers;
    return std::pair{(before - activations(plan(stage))) / kInput,
                     plan(stage).host_bytes() / kInput};
  };
  using FreedAndHeld = std::pair<int64_t, int64_t>;
  EXPECT_EQ(planned(0, 12), FreedAndHeld(12 * 16 - 2, 12 * 16 - 2));
  // The last layer stays, and at the peak the one before is on its way back.
  const FreedAndHeld all = planned(0, 16);
  EXPECT_GE(all.first, 14 * 16 - 2);
  EXPECT_LT(all.first, 15 * 16 - 2);
  EXPECT_EQ(all.second, 16 * 16 - 2);
  // Stages of 4 layers: 4 microbatches on the first, and one on the last.
  parallel_.pipeline_model_parallel_size = 4;
  EXPECT_EQ(planned(0, 3).second, 4 * (3 * 16 - 2));
  EXPECT_EQ(planned(3, 3).second, 3 * 16 - 2);
}

TEST_F(GptPlanLayoutTest, InterleavingHoldsMoreOnTheFirstStage) {
  parallel_.pipeline_model_parallel_size = 4;
  parallel_.num_layers_per_virtual_pipeline_stage = 2;
  parallel_.virtual_pipeline_model_parallel_size = 2;
  // p (1 + (p - 1) / (p v)), Narayanan et al. 2021, sec. 2.2.
  EXPECT_DOUBLE_EQ(plan(0).microbatches_in_flight, 4 * (1 + 3.0 / 8.0));
}

TEST_F(GptPlanLayoutTest, DistributedOptimizerSharesItsState) {
  parallel_.accumulate_allreduce_grads_in_fp32 = true;
  parallel_.data_parallel_size = 8;
  const double parameters = static_cast<double>(plan(0).num_parameters);
  const auto state = [&] {
    const RankMemory memory = plan(0);
    return static_cast<double>(memory.bytes(MemoryCategory::kParameters) +
                               memory.bytes(MemoryCategory::kGradients) +
                               memory.bytes(MemoryCategory::kOptimizer));
  };
  EXPECT_NEAR(state() / parameters, 16, 0.1);
  parallel_.use_distributed_optimizer = true;
  EXPECT_NEAR(state() / parameters, 6 + 10.0 / 8, 0.1);
  parallel_.num_distributed_optimizer_instances = 2;
  EXPECT_NEAR(state() / parameters, 6 + 10.0 / 4, 0.1);
}

TEST_F(GptPlanLayoutTest, OffloadedStateIsInTheHostsMemory) {
  parallel_.data_parallel_size = 8;
  parallel_.use_distributed_optimizer = true;
  adam_.optimizer_cpu_offload = true;
  const RankMemory memory = plan(0);
  constexpr int64_t kTables = 16384;  // of ranges of parameters
  EXPECT_LE(memory.bytes(MemoryCategory::kOptimizer), kTables);
  constexpr double kRounding = 3 * 2.0 * (1 << 20);  // of three tensors to huge pages
  constexpr double kPieces = 128.0 * (1 << 20);      // two of 8 million, down and up, in fp32
  EXPECT_NEAR(static_cast<double>(memory.host_bytes()) - kPieces,
              12.0 / 8 * static_cast<double>(memory.num_parameters), kRounding);
  adam_.use_precision_aware_optimizer = true;  // main parameters stay fp32
  adam_.exp_avg_dtype = DType::kBFloat16;
  EXPECT_NEAR(static_cast<double>(plan(0).host_bytes()) - kPieces,
              10.0 / 8 * static_cast<double>(memory.num_parameters), kRounding);
}

// In elements of a tensor of the residual stream [s, b, h], an all-gather among two sends half.
TEST_F(GptPlanLayoutTest, TensorParallelTrafficIsWhatTheFlagsLeaveExposed) {
  parallel_.tensor_model_parallel_size = 2;
  const int64_t transfer = int64_t{1024} * 16 * 1024 * 2 / 2;
  const int64_t layers = 16 * num_microbatches_;
  const auto sent = [&](auto f) {
    return f({.transformer = config_,
              .parallel = parallel_,
              .optimizer = adam_,
              .micro_batch_size = 16,
              .num_microbatches = num_microbatches_},
             0)
               .tensor_parallel /
           transfer;
  };
  EXPECT_EQ(sent(whole_traffic), 8 * layers);
  EXPECT_EQ(sent(exposed_part), 4 * layers);
  parallel_.async_tensor_model_parallel_allreduce = false;
  EXPECT_EQ(sent(exposed_part), 8 * layers);
  parallel_.tp_comm_overlap = true;
  EXPECT_EQ(sent(exposed_part), 8 * layers);  // only with sequence parallelism
  parallel_.tp_comm_overlap = false;
  recompute(config_, RecomputeMethod::kBlock, 4);
  EXPECT_EQ(sent(whole_traffic), (8 * 16 + 4 * 4) * num_microbatches_);
  config_.distribute_saved_activations = true;
  EXPECT_EQ(sent(whole_traffic), (8 * 16 + 5 * 4) * num_microbatches_);

  config_.recompute_granularity = RecomputeGranularity::kNone;
  parallel_.sequence_parallel = true;
  EXPECT_EQ(sent(whole_traffic), 10 * layers);
  EXPECT_EQ(sent(exposed_part), 6 * layers);
  // In FP8 inputs are gathered once, and gathers have half the bytes; blocks are gathered wide.
  config_.fp8 = {.format = Fp8Format::kHybrid};
  EXPECT_EQ(sent(whole_traffic), (4 + 2 * 2 / 2) * layers);
  EXPECT_EQ(sent(exposed_part), (2 + 2 * 2 / 2) * layers);
  config_.fp8.recipe = Fp8Recipe::kBlockwise;
  EXPECT_EQ(sent(whole_traffic), 8 * layers);
  config_.fp8 = {};
  parallel_.tp_comm_overlap = true;
  EXPECT_EQ(sent(exposed_part), 0);
  // 16384 tokens in pieces of 512 would be too small.
  config_.num_attention_heads = config_.num_query_groups = 32;
  config_.kv_channels = 32;
  parallel_.tensor_model_parallel_size = 32;
  const auto exposed = [&] {
    return exposed_part({.transformer = config_,
                         .parallel = parallel_,
                         .optimizer = adam_,
                         .micro_batch_size = 16,
                         .num_microbatches = num_microbatches_,
                         .device = DeviceType::kCuda},
                        0)
        .tensor_parallel;
  };
  EXPECT_EQ(exposed(), 6 * layers * (int64_t{1024} * 16 * 1024 * 2 / 32 * 31));
  parallel_.tensor_model_parallel_size = 16;
  EXPECT_EQ(exposed(), 0);
}

TEST_F(GptPlanLayoutTest, DataParallelTrafficIsExposedBucketByBucket) {
  parallel_.data_parallel_size = 4;
  parallel_.accumulate_allreduce_grads_in_fp32 = true;
  const auto exposed = [&] {
    return static_cast<double>(exposed_part({.transformer = config_,
                                             .parallel = parallel_,
                                             .optimizer = adam_,
                                             .num_microbatches = num_microbatches_},
                                            0)
                                   .data_parallel);
  };
  const auto n = static_cast<double>(plan(0).num_parameters);
  EXPECT_NEAR(exposed(), 2 * 4 * n * 3 / 4, 0.01 * n);
  parallel_.use_distributed_optimizer = true;
  EXPECT_NEAR(exposed(), (4 + 2) * n * 3 / 4, 0.01 * n);
  config_.fp8 = {.format = Fp8Format::kHybrid, .param_gather = true};
  const double in_fp8 = 16 * 12 * 1024 * 1024;  // the weights of layers, in one byte less
  EXPECT_NEAR(exposed(), ((4 + 2) * n - in_fp8) * 3 / 4, 0.01 * n);
  config_.fp8 = {};
  parallel_.overlap_grad_reduce = true;
  parallel_.ddp_bucket_size = 1'000'000;
  EXPECT_NEAR(exposed(), (4 * 1e6 + 2 * n) * 3 / 4, 0.01 * n);
  parallel_.overlap_param_gather = true;
  EXPECT_NEAR(exposed(), (4 + 2) * 1e6 * 3 / 4, 0.01 * n);
}

// Two instances of four ranks: gradients and parameters travel within an instance, and each rank
// adds up its quarter of the gradients with a rank of the other one.
TEST_F(GptPlanLayoutTest, InstancesExchangeSharesOfGradients) {
  parallel_.data_parallel_size = 8;
  parallel_.accumulate_allreduce_grads_in_fp32 = true;
  parallel_.use_distributed_optimizer = true;
  const auto traffic_of = [&](auto f) { return f(training(), 0); };
  EXPECT_EQ(traffic_of(whole_traffic).across_instances, 0);
  parallel_.num_distributed_optimizer_instances = 2;
  const auto n = static_cast<double>(plan(0).num_parameters);
  // Each sum has the padding of buckets, too.
  const auto expect_traffic = [&](const Traffic& got, double within, double across,
                                  double sums = 1) {
    EXPECT_NEAR(static_cast<double>(got.data_parallel), within, 0.01 * n * sums);
    EXPECT_NEAR(static_cast<double>(got.across_instances), across, 0.01 * n);
  };
  const double share = 4 * n / 4;
  expect_traffic(traffic_of(whole_traffic), (4 + 2) * n * 3 / 4, share);
  EXPECT_EQ(traffic_of(exposed_part).total(), traffic_of(whole_traffic).total());
  parallel_.overlap_grad_reduce = true;
  parallel_.ddp_bucket_size = 1'000'000;
  expect_traffic(traffic_of(exposed_part), (4 * 1e6 + 2 * n) * 3 / 4, 1e6);
  parallel_.zero_stage = 2;  // each microbatch within an instance, and their sum across instances
  const auto count = static_cast<double>(num_microbatches_);
  expect_traffic(traffic_of(whole_traffic), (count * 4 + 2) * n * 3 / 4, share, count);
  expect_traffic(traffic_of(exposed_part), (count * 4 * 1e6 + 2 * n) * 3 / 4, share);
}

// Experts on two of four ranks, in two instances: copies of an expert are in different instances.
TEST_F(GptPlanLayoutTest, InstancesExchangeWholeExpertsThatExistOnce) {
  config_.num_experts = 16;
  config_.moe_router_topk = 2;
  config_.moe_ffn_hidden_size = 512;
  config_ = resolved(config_);
  parallel_.data_parallel_size = 4;
  parallel_.expert_model_parallel_size = 2;
  parallel_.use_distributed_optimizer = true;
  parallel_.num_distributed_optimizer_instances = 2;
  const DryIteration dry = dry_iteration(training(), 0);
  const int64_t dense = dry.num_flat - dry.num_in_experts;
  EXPECT_NEAR(static_cast<double>(whole_traffic(training(), 0).across_instances),
              static_cast<double>(2 * (dense / 2 + dry.num_in_experts)), 4 << 20);
}

// 16 experts on four ranks: tokens go to the three others, and their gradients are summed nowhere.
TEST_F(GptPlanLayoutTest, ExpertParallelTrafficIsThatOfTokens) {
  config_.num_experts = 16;
  config_.moe_router_topk = 2;
  config_.moe_ffn_hidden_size = 512;
  config_ = resolved(config_);
  parallel_.data_parallel_size = parallel_.expert_model_parallel_size = 4;
  const int64_t tokens = int64_t{1024} * 16 * 1024 * 2 * 3;  // to three ranks
  const int64_t layers = config_.num_layers * num_microbatches_;
  const auto sent = [&](auto f) { return f(training(), 0).expert_parallel; };
  EXPECT_EQ(sent(whole_traffic), 4 * layers * tokens);
  EXPECT_EQ(sent(exposed_part), layers * tokens * 3 / 2);
  const DryIteration dry = dry_iteration(training(), 0);
  EXPECT_GT(dry.num_in_experts, 0);
  const int64_t dense = dry.num_flat - dry.num_in_experts;
  EXPECT_NEAR(static_cast<double>(whole_traffic(training(), 0).data_parallel),
              static_cast<double>(2 * 2 * dense / 4 * 3), 4 << 20);  // rounded to blocks
}

// 16 heads and groups of 64, 16 layers, 16 samples of 1024: each of two ranks has half of the
// tokens of all heads or all tokens of half of the heads, and sends the other half.
TEST_F(GptPlanLayoutTest, ContextParallelTrafficIsThatOfTheExchange) {
  parallel_.context_parallel_size = 2;
  const int64_t block = int64_t{512} * 16 * 1024 * 2;  // of queries, of keys or of values
  const int64_t layers = 16 * num_microbatches_;
  const auto blocks = [&](auto f) { return f(training(), 0).context_parallel / block; };
  parallel_.context_exchange = ContextExchange::kP2p;
  EXPECT_EQ(blocks(whole_traffic), layers * 3 * 2);
  EXPECT_EQ(blocks(exposed_part), 0);
  parallel_.context_exchange = ContextExchange::kAllGather;
  EXPECT_EQ(blocks(whole_traffic), layers * 3 * 2);
  EXPECT_EQ(blocks(exposed_part), layers * (3 - 1) * 2);  // half of a gather is beside
  parallel_.context_exchange = ContextExchange::kAllToAll;
  EXPECT_EQ(blocks(whole_traffic), layers * 2 * 4 / 2);
  EXPECT_EQ(blocks(exposed_part), layers * 2 * 4 / 2 / 2);
  // Two of the four ranks exchange heads, and blocks of half the size go to one other rank of a
  // ring.
  parallel_.context_parallel_size = 4;
  parallel_.hierarchical_context_parallel_sizes = {2, 2};
  EXPECT_EQ(blocks(whole_traffic), layers * (2 * 4 / 2 + 3 * 2) / 2);
  EXPECT_EQ(blocks(exposed_part), layers * 2 * 4 / 2 / 2 / 2);
  parallel_.context_parallel_size = 2;
  parallel_.hierarchical_context_parallel_sizes = {};
  recompute(config_, RecomputeMethod::kBlock, 4);
  EXPECT_EQ(blocks(whole_traffic), (16 * 2 + 4) * num_microbatches_ * 4 / 2);
}

// Of keys and values, a rank of a ring has two blocks at a time, however long the sequence is.
TEST_F(GptPlanLayoutTest, ARingHoldsFewKeys) {
  config_.seq_length = config_.max_position_embeddings = 131072;
  config_.padded_vocab_size = 128;  // the peak is in a layer
  recompute(config_, RecomputeMethod::kUniform, 1);
  config_ = resolved(config_);
  parallel_.context_parallel_size = 8;
  const auto planned = [&](ContextExchange exchange) {
    parallel_.context_exchange = exchange;
    return activations(plan(0));
  };
  const int64_t keys = int64_t{16} * 131072 * 2 * 1024 * 2;  // of all ranks
  EXPECT_LT(planned(ContextExchange::kP2p) + keys / 2, planned(ContextExchange::kAllGather));
}

TEST_F(GptPlanLayoutTest, MessagesBetweenStagesAreExposedUnlessInterleaved) {
  parallel_.pipeline_model_parallel_size = 4;
  const auto pipeline = [&](auto f) {
    return f({.transformer = config_,
              .parallel = parallel_,
              .optimizer = adam_,
              .micro_batch_size = 16,
              .num_microbatches = num_microbatches_},
             1)
        .pipeline_parallel;
  };
  EXPECT_EQ(pipeline(exposed_part), pipeline(whole_traffic));
  parallel_.num_layers_per_virtual_pipeline_stage = 2;
  parallel_.virtual_pipeline_model_parallel_size = 2;
  EXPECT_EQ(pipeline(exposed_part), 0);
  EXPECT_GT(pipeline(whole_traffic), 0);
}

// Only adapters have gradients and optimizer state.
TEST(AdapterPlanTest, CountsWhatIsTrained) {
  const auto planned = [](int64_t lora_rank) {
    TransformerConfig config = small_config(4);
    config.lora_rank = lora_rank;
    config = resolved(config);
    const ParallelConfig parallel;
    const OptimizerConfig adam;
    return rank_memory({.transformer = config, .parallel = parallel, .optimizer = adam}, 0);
  };
  const RankMemory whole = planned(0);
  const RankMemory adapters = planned(4);
  const int64_t added = 4 * (64 + 3 * 64) * 4;  // A and B of QKV in each layer
  EXPECT_EQ(adapters.num_parameters, whole.num_parameters + added);
  EXPECT_GE(adapters.bytes(MemoryCategory::kParameters), whole.bytes(MemoryCategory::kParameters));
  EXPECT_LE(adapters.bytes(MemoryCategory::kGradients), 2 * added * 4);
  EXPECT_LE(adapters.bytes(MemoryCategory::kOptimizer), 2 * 2 * added * 4);
  EXPECT_GE(whole.bytes(MemoryCategory::kGradients), 10 * added * 4);
}

}  // namespace
}  // namespace megatron
