// The plan against what the allocator counted: small GPTs of every kind train two iterations.
#include "megatron/models/plan/training_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/plan/traffic.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/fp8_buckets.h"
#include "megatron/optim/optimizer.h"
#include "megatron/parallel/fp8_scaling.h"
#include "megatron/transformer/layer_memory.h"
#include "tests/models/gpt/small_config.h"
#include "tests/models/plan_trial.h"
#include "tests/support/device_under_test.h"

namespace megatron {
namespace {

struct Variant {
  const char* name;
  void (*change)(TransformerConfig& config);
  int64_t micro_batch_size = 2;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

TransformerConfig config_of(const Variant& variant) {
  TransformerConfig c = small_config(4);
  variant.change(c);
  return resolved(c);
}

void recompute(TransformerConfig& c, RecomputeMethod method, int64_t num_layers) {
  c.recompute_granularity = RecomputeGranularity::kFull;
  c.recompute_method = method;
  c.recompute_num_layers = num_layers;
}

void make_llama(TransformerConfig& c) {
  c.position_embedding_type = PositionEmbedding::kRope;
  c.normalization = Normalization::kRmsNorm;
  c.activation = Activation::kSwiglu;
  c.ffn_hidden_size = 176;
  c.add_bias_linear = false;
  c.untie_embeddings_and_output_weights = true;
  c.group_query_attention = true;
  c.num_query_groups = 2;
}

// The peak is in attention.
void make_attention_large(TransformerConfig& c) {
  c.padded_vocab_size = 32;
  c.kv_channels = 2 * c.hidden_size / c.num_attention_heads;
}

const Variant kVariants[] = {
    {"gpt2", [](TransformerConfig&) {}},
    {"gpt2_micro_batch_3", [](TransformerConfig&) {}, 3},
    {"gpt2_bf16", [](TransformerConfig& c) { c.params_dtype = DType::kBFloat16; }},
    {"dropout", [](TransformerConfig& c) { c.hidden_dropout = c.attention_dropout = 0.1; }},
    {"small_vocabulary",
     [](TransformerConfig& c) {
       c.padded_vocab_size = 32;  // the peak is in a layer
       c.hidden_dropout = 0.1;
     }},
    {"fp32_residual",
     [](TransformerConfig& c) {
       c.params_dtype = DType::kBFloat16;
       c.fp32_residual_connection = true;
     }},
    {"llama", make_llama},
    {"llama_bf16",
     [](TransformerConfig& c) {
       make_llama(c);
       c.params_dtype = DType::kBFloat16;
     }},
    {"neox",
     [](TransformerConfig& c) {
       c.parallel_residual = true;
       c.position_embedding_type = PositionEmbedding::kRope;
       c.rotary_percent = 0.25;
       c.padded_vocab_size = 32;
     }},
    {"bloom",
     [](TransformerConfig& c) {
       c.position_embedding_type = PositionEmbedding::kAlibi;
       c.embed_layernorm = true;
     }},
    {"qk_layernorm",
     [](TransformerConfig& c) {
       c.qk_layernorm = true;
       c.padded_vocab_size = 32;
     }},
    {"qk_layernorm_llama",
     [](TransformerConfig& c) {
       make_llama(c);
       c.qk_layernorm = true;
       c.padded_vocab_size = 32;
     }},
    {"fp8",
     [](TransformerConfig& c) {
       c.params_dtype = DType::kBFloat16;
       c.fp8.format = Fp8Format::kHybrid;
       c.padded_vocab_size = 32;
     }},
    {"fp8_llama_tensorwise",
     [](TransformerConfig& c) {
       make_llama(c);
       c.params_dtype = DType::kBFloat16;
       c.fp8 = {.format = Fp8Format::kHybrid, .recipe = Fp8Recipe::kTensorwise};
     }},
    {"fp8_blockwise",
     [](TransformerConfig& c) {
       c.params_dtype = DType::kBFloat16;
       c.fp8 = {.format = Fp8Format::kHybrid, .recipe = Fp8Recipe::kBlockwise};
       c.padded_vocab_size = 32;
     }},
    {"fp8_recomputed",
     [](TransformerConfig& c) {
       c.params_dtype = DType::kBFloat16;
       c.fp8.format = Fp8Format::kHybrid;
       recompute(c, RecomputeMethod::kUniform, 1);
     }},
    {"selective",
     [](TransformerConfig& c) { c.recompute_granularity = RecomputeGranularity::kSelective; }},
    {"full_uniform_1", [](TransformerConfig& c) { recompute(c, RecomputeMethod::kUniform, 1); }},
    {"full_uniform_3",  // the last group is shorter
     [](TransformerConfig& c) { recompute(c, RecomputeMethod::kUniform, 3); }},
    {"full_uniform_small_vocabulary",
     [](TransformerConfig& c) {
       recompute(c, RecomputeMethod::kUniform, 2);
       c.padded_vocab_size = 32;
     }},
    {"full_block_2", [](TransformerConfig& c) { recompute(c, RecomputeMethod::kBlock, 2); }},
    {"full_uniform_1_on_host",
     [](TransformerConfig& c) {
       recompute(c, RecomputeMethod::kUniform, 1);
       c.checkpoint_in_cpu = true;
     }},
    {"full_uniform_1_on_host_small_vocabulary",  // the peak is in a layer
     [](TransformerConfig& c) {
       recompute(c, RecomputeMethod::kUniform, 1);
       c.checkpoint_in_cpu = true;
       c.padded_vocab_size = 32;
     }},
    {"full_block_3_on_host",
     [](TransformerConfig& c) {
       recompute(c, RecomputeMethod::kBlock, 3);
       c.checkpoint_in_cpu = true;
       c.padded_vocab_size = 32;
     }},
    {"full_block_llama",
     [](TransformerConfig& c) {
       make_llama(c);
       recompute(c, RecomputeMethod::kBlock, 3);
     }},
};

int64_t at(const std::array<int64_t, kNumMemoryCategories>& bytes, MemoryCategory category) {
  return bytes[static_cast<size_t>(category)];
}

class GptPlanTest : public testing::TestWithParam<Variant> {};

TEST_P(GptPlanTest, IsWhatTrainingTakes) {
  if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  const TransformerConfig config = config_of(GetParam());
  const int64_t batch = GetParam().micro_batch_size;
  const PlanTrial trial = plan_trial<GptModel>(
      config, batch,
      [&](const GptModel& model, RandomState& random, const Tensor& seed) -> std::vector<Variable> {
        const Tensor ids = planned_ids(config, batch);
        const Tensor mask = full(ids.shape(), 1, DType::kFloat32, {});
        const Variable hidden = model.hidden_states({.tokens = ids}, random);
        return {gpt_loss(model, hidden, ids, mask, {}, seed)};
      });
  trial.expect_within(0.03);
  // The scratch memory of tiny products is more than the model, and is not all there at the peak.
  const auto workspace = MemoryCategory::kWorkspace;
  const auto planned = static_cast<double>(trial.plan.total_bytes() - trial.plan.bytes(workspace));
  const int64_t took = trial.after.peak_allocated_bytes - trial.before.allocated_bytes;
  EXPECT_LE(static_cast<double>(took - trial.taken(workspace)), 1.03 * planned);
  EXPECT_GE(static_cast<double>(took), 0.97 * planned);
}

INSTANTIATE_TEST_SUITE_P(Variants, GptPlanTest, testing::ValuesIn(kVariants),
                         [](const auto& variant) { return std::string(variant.param.name); });

struct RanksVariant {
  const char* name;
  bool sequence_parallel = false;
  bool tp_comm_overlap = false;
  void (*change)(TransformerConfig& config) = [](TransformerConfig&) {};
  int64_t tp = 2;
  int64_t cp = 1;
  ContextExchange exchange = ContextExchange::kP2p;
};
void PrintTo(const RanksVariant& variant, std::ostream* out) { *out << variant.name; }

class GptPlanRanksTest : public testing::TestWithParam<RanksVariant> {};

TEST_P(GptPlanRanksTest, RanksTakeWhatIsPlanned) {
  const RanksVariant& variant = GetParam();
  const TransformerConfig config = config_of({variant.name, variant.change});
  ParallelConfig parallel;
  parallel.tensor_model_parallel_size = variant.tp;
  parallel.context_parallel_size = variant.cp;
  parallel.context_exchange = variant.exchange;
  parallel.world_size = variant.tp * variant.cp;
  parallel.sequence_parallel = variant.sequence_parallel;
  parallel.tp_comm_overlap = variant.tp_comm_overlap;
  const OptimizerConfig adam;
  const RankMemory plan = rank_memory({.transformer = config,
                                       .parallel = parallel,
                                       .optimizer = adam,
                                       .micro_batch_size = 2,
                                       .num_microbatches = 1},
                                      0);
  comm::run_ranks(static_cast<int>(parallel.world_size), [&](const comm::Group& world) {
    const Stream stream{Device{DeviceType::kCpu, world.rank() + 1}};  // a pool of its own
    CachingAllocator& allocator = allocator_of(stream.device);
    allocator.empty_cache();  // a cached block that is a little too large would be taken
    const ParallelContext context = make_parallel_context(world, parallel);
    const GptModel model(config, whole_model(config.num_layers), context.tensor, stream,
                         context.context);
    initialize(model, 1);
    FlatParameters flat(optimized_parameters(model, context.tensor.rank()), {});
    allocator.empty_cache();
    allocator.reset_peaks();
    RandomState random(1);
    const int64_t length = config.seq_length / context.context.size();
    const Tensor ids =
        tensor_of(std::vector<int64_t>(static_cast<size_t>(2 * length), 3), {2, length});
    const Tensor mask = full(ids.shape(), 1, DType::kFloat32, {});
    const GptInput input{.tokens = ids, .position_ids = ids};
    const Tensor seed = full({}, 1, DType::kFloat32, stream);
    const Variable loss = gpt_loss(model, model.hidden_states(input, random), ids, mask, {}, seed);
    backward(loss, seed);
    const MemoryStats stats = allocator.stats();
    EXPECT_EQ(plan.num_parameters, flat.num_elements());
    // The plan is that of the last context-parallel rank, whose first chunk sees the most keys.
    if (context.context.rank() + 1 < context.context.size()) return;
    for (const MemoryCategory category :
         {MemoryCategory::kParameters, MemoryCategory::kGradients, MemoryCategory::kActivations}) {
      const auto took = static_cast<double>(at(stats.peak_by_category, category));
      EXPECT_NEAR(static_cast<double>(plan.bytes(category)), took, 0.03 * took)
          << name_of(category);
    }
  });
}

constexpr RanksVariant kRanksVariants[] = {
    {"plain"},
    {"sequence_parallel", true},
    {"sequence_parallel_by_pieces", true, true},
    {"by_pieces", false, true},
    {"of_four_by_pieces", true, true, [](TransformerConfig&) {}, 4},
    {"llama_by_pieces", true, true, make_llama},
    {"recomputed_by_pieces", true, true,
     [](TransformerConfig& c) { recompute(c, RecomputeMethod::kUniform, 1); }},
    {"small_vocabulary_by_pieces", true, true,  // the peak is in a layer
     [](TransformerConfig& c) { c.padded_vocab_size = 32; }},
    {"small_vocabulary", true, false, [](TransformerConfig& c) { c.padded_vocab_size = 32; }},
    {"recomputed", false, false,
     [](TransformerConfig& c) { recompute(c, RecomputeMethod::kUniform, 1); }},
    {"recomputed_distributed", false, false,
     [](TransformerConfig& c) {
       recompute(c, RecomputeMethod::kBlock, 3);
       c.distribute_saved_activations = true;
     }},
    {"recomputed_distributed_small_vocabulary", false, false,
     [](TransformerConfig& c) {
       recompute(c, RecomputeMethod::kUniform, 1);
       c.padded_vocab_size = 32;
       c.distribute_saved_activations = true;
     }},
    {"recomputed_distributed_on_host", false, false,
     [](TransformerConfig& c) {
       recompute(c, RecomputeMethod::kUniform, 1);
       c.padded_vocab_size = 32;
       c.distribute_saved_activations = true;
       c.checkpoint_in_cpu = true;
     }},
    {"qk_layernorm", true, false,
     [](TransformerConfig& c) {
       c.qk_layernorm = true;
       c.padded_vocab_size = 32;
     }},
    {"multi_query", false, false,
     [](TransformerConfig& c) {
       c.group_query_attention = true;
       c.num_query_groups = 1;
       c.padded_vocab_size = 32;
     }},
    {"shared_groups", true, false,
     [](TransformerConfig& c) {
       make_llama(c);
       c.qk_layernorm = true;
       c.padded_vocab_size = 32;
     },
     4},
    {"ring", false, false, make_attention_large, 1, 2},
    {"ring_of_four", false, false, make_attention_large, 1, 4},
    {"ring_in_bf16", false, false,
     [](TransformerConfig& c) {
       make_attention_large(c);
       c.params_dtype = DType::kBFloat16;
     },
     1, 2},
    {"ring_of_four_in_bf16", false, false,
     [](TransformerConfig& c) {
       make_attention_large(c);
       c.params_dtype = DType::kBFloat16;
     },
     1, 4},
    {"ring_with_dropout", false, false,
     [](TransformerConfig& c) {
       make_attention_large(c);
       c.params_dtype = DType::kBFloat16;
       c.attention_dropout = 0.1;
     },
     1, 2},
    {"ring_grouped", false, false, make_llama, 1, 2},
    {"ring_recomputed", false, false,
     [](TransformerConfig& c) { recompute(c, RecomputeMethod::kUniform, 1); }, 1, 2},
    {"gathered", false, false, [](TransformerConfig&) {}, 1, 2, ContextExchange::kAllGather},
    {"gathered_grouped", false, false, make_llama, 1, 2, ContextExchange::kAllGather},
    {"gathered_recomputed", false, false,
     [](TransformerConfig& c) { recompute(c, RecomputeMethod::kUniform, 1); }, 1, 2,
     ContextExchange::kAllGather},
    {"by_heads", false, false, make_attention_large, 1, 2, ContextExchange::kAllToAll},
    {"by_heads_of_four", false, false, make_attention_large, 1, 4, ContextExchange::kAllToAll},
    {"by_heads_grouped", false, false, make_llama, 1, 2, ContextExchange::kAllToAll},
    {"by_heads_tensor", true, false, [](TransformerConfig&) {}, 2, 2, ContextExchange::kAllToAll},
};
INSTANTIATE_TEST_SUITE_P(Variants, GptPlanRanksTest, testing::ValuesIn(kRanksVariants),
                         [](const auto& variant) { return std::string(variant.param.name); });

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

double gibibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

// What one H200 took on 2026-11-22 at 1ce9c5d.
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
  EXPECT_NEAR(planned(gpt(24, 1024, 16, 1024, 50304), 32), 30.87, 0.03 * 30.87);
  EXPECT_NEAR(planned(gpt(48, 1600, 25, 1024, 50304), 16), 64.29, 0.03 * 64.29);
  EXPECT_NEAR(planned(gpt(24, 2048, 16, 2048, 50304), 8), 46.72, 0.03 * 46.72);
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
  const auto scratch = [&] { return plan(0).bytes(MemoryCategory::kWorkspace); };
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
  EXPECT_DOUBLE_EQ(pipeline_bubble(training()), 3.0 / 11.0);

  num_microbatches_ = 2;
  EXPECT_EQ(plan(0).microbatches_in_flight, 2);
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
  // Stages of 4 layers: 4 microbatches on the first, where one more input of another microbatch
  // stays, and one on the last.
  parallel_.pipeline_model_parallel_size = 4;
  EXPECT_EQ(planned(0), FreedAndHeld(16 - 3, 16));
  EXPECT_EQ(planned(3), FreedAndHeld(4 - 2, 4));
  // Chunks of two layers. The first has 8 microbatches at most, the second 4, at another moment.
  parallel_.num_layers_per_virtual_pipeline_stage = 2;
  parallel_.virtual_pipeline_model_parallel_size = 2;
  EXPECT_EQ(planned(0).second, 2 * (8 + 4));
}

TEST_F(GptPlanLayoutTest, InterleavingHoldsMoreOnTheFirstStage) {
  parallel_.pipeline_model_parallel_size = 4;
  parallel_.num_layers_per_virtual_pipeline_stage = 2;
  parallel_.virtual_pipeline_model_parallel_size = 2;
  // p (1 + (p - 1) / (p v)), Narayanan et al. 2021, sec. 2.2.
  EXPECT_DOUBLE_EQ(plan(0).microbatches_in_flight, 4 * (1 + 3.0 / 8.0));
  EXPECT_DOUBLE_EQ(pipeline_bubble(training()), 3.0 / 19.0);
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
  EXPECT_NEAR(state() / parameters, 18, 0.1);
  parallel_.use_distributed_optimizer = true;
  EXPECT_NEAR(state() / parameters, 6 + 12.0 / 8, 0.1);
}

TEST_F(GptPlanLayoutTest, OffloadedStateIsInTheHostsMemory) {
  parallel_.data_parallel_size = 8;
  parallel_.use_distributed_optimizer = true;
  adam_.optimizer_cpu_offload = true;
  const RankMemory memory = plan(0);
  EXPECT_EQ(memory.bytes(MemoryCategory::kOptimizer), 0);
  constexpr double kRounding = 3 * 2.0 * (1 << 20);  // of three tensors to huge pages
  constexpr double kPieces = 128.0 * (1 << 20);      // two of 8 million, down and up, in fp32
  EXPECT_NEAR(static_cast<double>(memory.host_bytes()) - kPieces,
              12.0 / 8 * static_cast<double>(memory.num_parameters), kRounding);
  adam_.use_precision_aware_optimizer = true;  // main parameters stay fp32
  adam_.exp_avg_dtype = DType::kBFloat16;
  EXPECT_NEAR(static_cast<double>(plan(0).host_bytes()) - kPieces,
              10.0 / 8 * static_cast<double>(memory.num_parameters), kRounding);
}

TEST_F(GptPlanLayoutTest, LargestMicroBatchIsTheLastThatFits) {
  PlannedTraining training{
      .transformer = config_, .parallel = parallel_, .optimizer = adam_, .micro_batch_size = 3};
  const int64_t budget = largest_rank_memory(training).total_bytes();
  EXPECT_EQ(largest_micro_batch_size(training, budget, 64), 3);
  EXPECT_EQ(largest_micro_batch_size(training, budget, 2), 2);
  EXPECT_EQ(largest_micro_batch_size(training, 1 << 20, 64), 0);
}

// --fp8-param-gather: a byte by rows, one by columns, and a rank's share in the model's dtype.
TEST(GptPlanGatherTest, RanksThatGatherInFp8TakeWhatIsPlanned) {
  for (const Fp8Recipe recipe : {Fp8Recipe::kDelayed, Fp8Recipe::kTensorwise}) {
    TransformerConfig config = config_of({"gathered", [](TransformerConfig& c) {
                                            make_llama(c);
                                            c.params_dtype = DType::kBFloat16;
                                          }});
    config.fp8 = {.format = Fp8Format::kHybrid, .recipe = recipe, .param_gather = true};
    ParallelConfig parallel;
    parallel.world_size = parallel.data_parallel_size = 4;
    parallel.use_distributed_optimizer = true;
    const OptimizerConfig adam;
    const auto planned = [&] {
      return rank_memory({.transformer = config,
                          .parallel = parallel,
                          .optimizer = adam,
                          .micro_batch_size = 2,
                          .num_microbatches = 1},
                         0)
          .bytes(MemoryCategory::kParameters);
    };
    const int64_t plan = planned();
    comm::run_ranks(4, [&](const comm::Group& world) {
      const Stream stream{Device{DeviceType::kCpu, world.rank() + 1}};  // a pool of its own
      CachingAllocator& allocator = allocator_of(stream.device);
      allocator.empty_cache();
      ParallelContext context;
      context.world = context.data = world;
      const GptModel model(config, whole_model(config.num_layers), context.tensor, stream,
                           context.context);
      initialize(model, 1);
      std::vector<OptimizedParameter> parameters = optimized_parameters(model);
      find_fp8_layers(parameters, {&model});
      FlatParameters flat(std::move(parameters), {.share = world.rank(), .num_shares = 4});
      Fp8Scaling scaling({&model}, config.fp8, context, stream,
                         std::make_unique<Fp8Gather>(fp8_buckets(flat), world, false, stream));
      scaling.quantize_weights();
      const auto took =
          static_cast<double>(at(allocator.stats().by_category, MemoryCategory::kParameters));
      EXPECT_NEAR(static_cast<double>(plan), took, 0.03 * took);
    });
    config.fp8.param_gather = false;
    EXPECT_GT(planned(), 1.3 * static_cast<double>(plan));
  }
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
  EXPECT_EQ(sent(traffic), 8 * layers);
  EXPECT_EQ(sent(exposed_traffic), 4 * layers);
  parallel_.async_tensor_model_parallel_allreduce = false;
  EXPECT_EQ(sent(exposed_traffic), 8 * layers);
  parallel_.tp_comm_overlap = true;
  EXPECT_EQ(sent(exposed_traffic), 8 * layers);  // only with sequence parallelism
  parallel_.tp_comm_overlap = false;
  recompute(config_, RecomputeMethod::kBlock, 4);
  EXPECT_EQ(sent(traffic), (8 * 16 + 4 * 4) * num_microbatches_);
  config_.distribute_saved_activations = true;
  EXPECT_EQ(sent(traffic), (8 * 16 + 5 * 4) * num_microbatches_);

  config_.recompute_granularity = RecomputeGranularity::kNone;
  parallel_.sequence_parallel = true;
  EXPECT_EQ(sent(traffic), 10 * layers);
  EXPECT_EQ(sent(exposed_traffic), 6 * layers);
  // In FP8 inputs are gathered once, and gathers have half the bytes; blocks are gathered wide.
  config_.fp8 = {.format = Fp8Format::kHybrid};
  EXPECT_EQ(sent(traffic), (4 + 2 * 2 / 2) * layers);
  EXPECT_EQ(sent(exposed_traffic), (2 + 2 * 2 / 2) * layers);
  config_.fp8.recipe = Fp8Recipe::kBlockwise;
  EXPECT_EQ(sent(traffic), 8 * layers);
  config_.fp8 = {};
  parallel_.tp_comm_overlap = true;
  EXPECT_EQ(sent(exposed_traffic), 0);
  // 16384 tokens in pieces of 512 would be too small.
  parallel_.tensor_model_parallel_size = 32;
  const auto exposed = [&] {
    return exposed_traffic({.transformer = config_,
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
    return static_cast<double>(exposed_traffic({.transformer = config_,
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

// 16 heads and groups of 64, 16 layers, 16 samples of 1024: each of two ranks has half of the
// tokens of all heads or all tokens of half of the heads, and sends the other half.
TEST_F(GptPlanLayoutTest, ContextParallelTrafficIsThatOfTheExchange) {
  parallel_.context_parallel_size = 2;
  const int64_t block = int64_t{512} * 16 * 1024 * 2;  // of queries, of keys or of values
  const int64_t layers = 16 * num_microbatches_;
  const auto blocks = [&](auto f) { return f(training(), 0).context_parallel / block; };
  parallel_.context_exchange = ContextExchange::kP2p;
  EXPECT_EQ(blocks(traffic), layers * 3 * 2);
  EXPECT_EQ(blocks(exposed_traffic), 0);
  parallel_.context_exchange = ContextExchange::kAllGather;
  EXPECT_EQ(blocks(traffic), layers * 3 * 2);
  EXPECT_EQ(blocks(exposed_traffic), layers * (3 - 1) * 2);  // half of a gather is beside
  parallel_.context_exchange = ContextExchange::kAllToAll;
  EXPECT_EQ(blocks(traffic), layers * 2 * 4 / 2);
  EXPECT_EQ(blocks(exposed_traffic), layers * 2 * 4 / 2 / 2);
  recompute(config_, RecomputeMethod::kBlock, 4);
  EXPECT_EQ(blocks(traffic), (16 * 2 + 4) * num_microbatches_ * 4 / 2);
}

// Of keys and values, a rank of a ring has two blocks at a time, however long the sequence is.
TEST_F(GptPlanLayoutTest, ARingHoldsFewKeys) {
  config_.seq_length = 131072;
  config_.recompute_granularity = RecomputeGranularity::kFull;
  config_.recompute_method = RecomputeMethod::kUniform;
  config_.recompute_num_layers = 1;
  parallel_.context_parallel_size = 8;
  const auto attention = [&] {
    const TransformerConfig config = resolved(config_);
    const LayerMemory layer = layer_memory(config, {.micro_batch_size = 1,
                                                    .cp = 8,
                                                    .exchange = parallel_.context_exchange,
                                                    .device = DeviceType::kCuda});
    for (const MemoryStep& step : layer.backward) {
      if (step.what == "attention") return step.allocates;
    }
    return int64_t{0};
  };
  parallel_.context_exchange = ContextExchange::kP2p;
  const int64_t ring = attention();
  parallel_.context_exchange = ContextExchange::kAllGather;
  EXPECT_LT(2 * ring, attention());
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
  EXPECT_EQ(pipeline(exposed_traffic), pipeline(traffic));
  parallel_.num_layers_per_virtual_pipeline_stage = 2;
  parallel_.virtual_pipeline_model_parallel_size = 2;
  EXPECT_EQ(pipeline(exposed_traffic), 0);
  EXPECT_GT(pipeline(traffic), 0);
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
