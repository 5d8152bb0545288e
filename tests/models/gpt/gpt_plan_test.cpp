// The plan against what the allocator counted: small GPTs of every kind train two iterations.
#include "megatron/models/plan/training_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/fp8_buckets.h"
#include "megatron/optim/optimizer.h"
#include "megatron/parallel/fp8_scaling.h"
#include "tests/models/gpt/small_config.h"
#include "tests/models/plan_trial.h"
#include "tests/parallel/layouts.h"
#include "tests/support/device_under_test.h"

namespace megatron {
namespace {

struct GptPlanVariant {
  const char* name;
  void (*change)(TransformerConfig& config);
  int64_t micro_batch_size = 2;
};
void PrintTo(const GptPlanVariant& variant, std::ostream* out) { *out << variant.name; }

TransformerConfig gpt_plan_config_of(const GptPlanVariant& variant) {
  TransformerConfig c = small_config(4);
  variant.change(c);
  return resolved(c);
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

// Experts in the form of Qwen3.
void make_experts(TransformerConfig& c) {
  make_llama(c);
  c.num_experts = 8;
  c.moe_ffn_hidden_size = 48;
  c.moe_router_topk = 2;
  c.moe_aux_loss_coeff = {0.01};
}

// Experts in the form of DeepSeek-V3.
void make_deepseek(TransformerConfig& c) {
  make_experts(c);
  c.group_query_attention = false;
  c.num_query_groups = 0;
  c.multi_latent_attention = true;
  c.q_lora_rank = 24;
  c.kv_lora_rank = 32;
  c.qk_head_dim = 16;
  c.qk_pos_emb_head_dim = 8;
  c.v_head_dim = 16;
  c.moe_layer_freq = {0, 1, 1, 1};
  c.moe_shared_expert_intermediate_size = 48;
  c.moe_router_score_function = RouterScore::kSigmoid;
  c.moe_router_enable_expert_bias = true;
  c.moe_router_num_groups = 4;
  c.moe_router_group_topk = 2;
  c.moe_router_dtype = DType::kFloat32;
}

// The peak is in attention.
void make_attention_large(TransformerConfig& c) {
  c.padded_vocab_size = 32;
  c.kv_channels = 2 * c.hidden_size / c.num_attention_heads;
}

const GptPlanVariant kGptPlanVariants[] = {
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
    {"parts",
     [](TransformerConfig& c) {
       recompute(c, {"layernorm", "activation"});
     }},
    {"parts_llama",
     [](TransformerConfig& c) {
       make_llama(c);
       recompute(c, {"layernorm", "activation"});
     }},
    {"parts_mlp",
     [](TransformerConfig& c) {
       recompute(c, {"layernorm", "mlp"});
     }},
    {"parts_fp8",
     [](TransformerConfig& c) {
       c.params_dtype = DType::kBFloat16;
       c.fp8.format = Fp8Format::kHybrid;
       recompute(c, {"layernorm", "mlp"});
     }},
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
    {"offloaded_2", [](TransformerConfig& c) { offload(c, 2); }},
    {"offloaded_all",
     [](TransformerConfig& c) {
       offload(c, 4);
       c.hidden_dropout = 0.1;
     }},
    {"offloaded_llama_bf16",
     [](TransformerConfig& c) {
       make_llama(c);
       c.params_dtype = DType::kBFloat16;
       offload(c, 3);
     }},
    {"offloaded_parts",
     [](TransformerConfig& c) {
       recompute(c, {"layernorm", "mlp"});
       offload(c, 3);
     }},
    {"offloaded_large_ones",
     [](TransformerConfig& c) {
       offload(c, 3);
       c.min_offloaded_tensor_size = 3 * 2 * c.seq_length * c.hidden_size;
     }},
    {"offloaded_experts",
     [](TransformerConfig& c) {
       make_experts(c);
       offload(c, 3);
     }},
    {"full_block_llama",
     [](TransformerConfig& c) {
       make_llama(c);
       recompute(c, RecomputeMethod::kBlock, 3);
     }},
    {"experts", make_experts},
    {"experts_bf16_micro_batch_3",
     [](TransformerConfig& c) {
       make_experts(c);
       c.params_dtype = DType::kBFloat16;
     },
     3},
    {"experts_small_vocabulary",
     [](TransformerConfig& c) {
       make_experts(c);
       c.padded_vocab_size = 32;
     }},
    {"experts_gelu_biases",
     [](TransformerConfig& c) {
       c.num_experts = 4;
       c.moe_router_topk = 1;
       c.padded_vocab_size = 32;
     }},
    {"experts_shared_gated",
     [](TransformerConfig& c) {
       make_experts(c);
       c.moe_shared_expert_intermediate_size = 64;
       c.moe_shared_expert_gate = true;
       c.padded_vocab_size = 32;
     }},
    {"experts_every_other_layer",
     [](TransformerConfig& c) {
       make_experts(c);
       c.moe_layer_freq = {2};
       c.padded_vocab_size = 32;
     }},
    {"experts_capacity_padded",
     [](TransformerConfig& c) {
       make_experts(c);
       c.moe_expert_capacity_factor = 1.25;
       c.moe_pad_expert_input_to_capacity = true;
       c.padded_vocab_size = 32;
     }},
    {"experts_recomputed",
     [](TransformerConfig& c) {
       make_experts(c);
       recompute(c, {"moe", "layernorm"});
       c.padded_vocab_size = 32;
     }},
    {"experts_full_uniform_1",
     [](TransformerConfig& c) {
       make_experts(c);
       recompute(c, RecomputeMethod::kUniform, 1);
       c.padded_vocab_size = 32;
     }},
    {"deepseek", make_deepseek},
    {"deepseek_bf16_small_vocabulary",
     [](TransformerConfig& c) {
       make_deepseek(c);
       c.params_dtype = DType::kBFloat16;
       c.padded_vocab_size = 32;
     }},
};

int64_t gpt_plan_at(const std::array<int64_t, kNumMemoryCategories>& bytes,
                    MemoryCategory category) {
  return bytes[static_cast<size_t>(category)];
}

class GptPlanTest : public testing::TestWithParam<GptPlanVariant> {};

TEST_P(GptPlanTest, IsWhatTrainingTakes) {
  if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  const TransformerConfig config = gpt_plan_config_of(GetParam());
  const int64_t batch = GetParam().micro_batch_size;
  const PlanTrial trial = plan_trial<GptModel>(
      config, batch,
      [&](const GptModel& model, RandomState& random, const Tensor& seed) -> std::vector<Variable> {
        const Tensor ids = planned_ids(config, batch);
        const Tensor mask = full(ids.shape(), 1, DType::kFloat32, {});
        std::vector<Variable> losses;
        const Variable hidden =
            model.hidden_states({.tokens = ids, .auxiliary_losses = &losses}, random);
        losses.insert(losses.begin(),
                      token_loss(model, hidden, {.labels = ids, .loss_mask = mask, .seed = seed}));
        return losses;
      });
  trial.expect_within(0.03);
  // The scratch memory of tiny products is more than the model, and is not all there at the peak.
  const auto workspace = MemoryCategory::kWorkspace;
  const auto& peaks = trial.plan.stats.peak_by_category;
  const auto planned = static_cast<double>(std::accumulate(peaks.begin(), peaks.end(), int64_t{0}) -
                                           trial.planned(workspace));
  const int64_t took = trial.after.peak_allocated_bytes - trial.before.allocated_bytes;
  EXPECT_LE(static_cast<double>(took - trial.taken(workspace)), 1.03 * planned);
  EXPECT_GE(static_cast<double>(took), 0.97 * planned);
}

INSTANTIATE_TEST_SUITE_P(Variants, GptPlanTest, testing::ValuesIn(kGptPlanVariants),
                         [](const auto& variant) { return std::string(variant.param.name); });

struct RanksVariant {
  const char* name;
  bool sequence_parallel = false;
  bool tp_comm_overlap = false;
  void (*change)(TransformerConfig& config) = [](TransformerConfig&) {};
  int64_t tp = 2;
  int64_t cp = 1;
  ContextExchange exchange = ContextExchange::kP2p;
  int64_t neighbours = 0;  // that exchange heads, in a ring of such; 0: no ring
};
void PrintTo(const RanksVariant& variant, std::ostream* out) { *out << variant.name; }

class GptPlanRanksTest : public testing::TestWithParam<RanksVariant> {};

TEST_P(GptPlanRanksTest, RanksTakeWhatIsPlanned) {
  const RanksVariant& variant = GetParam();
  const TransformerConfig config = gpt_plan_config_of({variant.name, variant.change});
  ParallelConfig parallel;
  parallel.tensor_model_parallel_size = variant.tp;
  parallel.context_parallel_size = variant.cp;
  parallel.context_exchange = variant.exchange;
  if (variant.neighbours > 0) {
    parallel.hierarchical_context_parallel_sizes = {variant.neighbours,
                                                    variant.cp / variant.neighbours};
  }
  parallel.world_size = variant.tp * variant.cp;
  parallel.sequence_parallel = variant.sequence_parallel;
  parallel.tp_comm_overlap = variant.tp_comm_overlap;
  const OptimizerConfig adam;
  const DryIteration plan = dry_iteration({.transformer = config,
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
    FlatParameters flat(optimized_parameters(model, context), {});
    allocator.empty_cache();
    allocator.reset_peaks();
    RandomState random(1);
    const int64_t length = config.seq_length / context.context.size();
    const Tensor ids =
        tensor_of(std::vector<int64_t>(static_cast<size_t>(2 * length), 3), {2, length});
    const Tensor mask = full(ids.shape(), 1, DType::kFloat32, {});
    const ModelInput input{.tokens = ids, .position_ids = ids};
    const Tensor seed = full({}, 1, DType::kFloat32, stream);
    const Variable loss = token_loss(model, model.hidden_states(input, random),
                                     {.labels = ids, .loss_mask = mask, .seed = seed});
    backward(loss, seed);
    const MemoryStats stats = allocator.stats();
    EXPECT_EQ(plan.num_parameters, flat.num_elements());
    // The plan is that of the last context-parallel rank, whose first chunk sees the most keys.
    if (context.context.rank() + 1 < context.context.size()) return;
    for (const MemoryCategory category :
         {MemoryCategory::kParameters, MemoryCategory::kGradients, MemoryCategory::kActivations}) {
      const auto took = static_cast<double>(gpt_plan_at(stats.peak_by_category, category));
      EXPECT_NEAR(static_cast<double>(gpt_plan_at(plan.stats.peak_by_category, category)), took,
                  0.03 * took)
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
    {"offloaded", true, false, [](TransformerConfig& c) { offload(c, 3); }},
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
    {"by_heads_of_rings", false, false, make_attention_large, 1, 4, ContextExchange::kAllToAll, 2},
    {"by_heads_tensor", true, false, [](TransformerConfig&) {}, 2, 2, ContextExchange::kAllToAll},
};
INSTANTIATE_TEST_SUITE_P(Variants, GptPlanRanksTest, testing::ValuesIn(kRanksVariants),
                         [](const auto& variant) { return std::string(variant.param.name); });

// --fp8-param-gather: a byte by rows, one by columns, and a rank's share in the model's dtype.
TEST(GptPlanGatherTest, RanksThatGatherInFp8TakeWhatIsPlanned) {
  for (const Fp8Recipe recipe :
       {Fp8Recipe::kDelayed, Fp8Recipe::kTensorwise, Fp8Recipe::kBlockwise}) {
    TransformerConfig config = gpt_plan_config_of({"gathered", [](TransformerConfig& c) {
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
      const ParallelContext context = data_parallel(world);
      const GptModel model(config, whole_model(config.num_layers), context.tensor, stream,
                           context.context);
      initialize(model, 1);
      std::vector<OptimizedParameter> parameters = optimized_parameters(model);
      find_fp8_layers(parameters, {&model});
      FlatParameters flat(std::move(parameters), {.divides_state = true}, context);
      Fp8Scaling scaling({&model}, config.fp8, context, stream,
                         std::make_unique<Fp8Gather>(fp8_buckets(flat), false, stream));
      scaling.quantize_weights();
      const auto took = static_cast<double>(
          gpt_plan_at(allocator.stats().by_category, MemoryCategory::kParameters));
      EXPECT_NEAR(static_cast<double>(plan), took, 0.03 * took);
    });
    config.fp8.param_gather = false;
    EXPECT_GT(planned(), 1.3 * static_cast<double>(plan));
  }
}

}  // namespace
}  // namespace megatron
