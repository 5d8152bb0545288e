// The plan of a T5 against what the allocator counted.
#include <gtest/gtest.h>

#include "megatron/models/plan/training_plan.h"
#include "megatron/models/t5/t5_model.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/optimizer.h"
#include "tests/models/gpt/small_config.h"
#include "tests/support/device_under_test.h"

namespace megatron {
namespace {

struct T5PlanVariant {
  const char* name;
  void (*change)(TransformerConfig& config);
  int64_t micro_batch_size = 2;
};
void PrintTo(const T5PlanVariant& variant, std::ostream* out) { *out << variant.name; }

const T5PlanVariant kT5PlanVariants[] = {
    {"plain", [](TransformerConfig&) {}},
    {"micro_batch_3", [](TransformerConfig&) {}, 3},
    {"bf16", [](TransformerConfig& c) { c.params_dtype = DType::kBFloat16; }},
    {"dropout", [](TransformerConfig& c) { c.hidden_dropout = c.attention_dropout = 0.1; }},
    {"long_decoder", [](TransformerConfig& c) { c.decoder_seq_length = 128; }},
    {"small_vocabulary", [](TransformerConfig& c) { c.padded_vocab_size = 32; }},
    {"more_encoder",
     [](TransformerConfig& c) {
       c.num_layers = 6;
       c.decoder_num_layers = 2;
     }},
    {"published",
     [](TransformerConfig& c) {
       c.position_embedding_type = PositionEmbedding::kRelative;
       c.normalization = Normalization::kRmsNorm;
       c.activation = Activation::kGegluTanh;
       c.add_bias_linear = c.add_lm_head_bias = false;
       c.untie_embeddings_and_output_weights = true;
       c.padded_vocab_size = 512;
     }},
    {"recomputed",
     [](TransformerConfig& c) {
       c.recompute_granularity = RecomputeGranularity::kFull;
       c.recompute_method = RecomputeMethod::kUniform;
       c.recompute_num_layers = 1;
     }},
};

TransformerConfig t5_plan_config_of(const T5PlanVariant& variant) {
  TransformerConfig c = small_config(4);
  c.kind = ModelKind::kT5;
  c.decoder_num_layers = 4;
  c.decoder_seq_length = 32;
  c.max_position_embeddings = 128;
  variant.change(c);
  return resolved(c);
}

class T5PlanTest : public testing::TestWithParam<T5PlanVariant> {};

TEST_P(T5PlanTest, IsWhatTrainingTakes) {
  if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  const TransformerConfig config = t5_plan_config_of(GetParam());
  const int64_t batch = GetParam().micro_batch_size;
  ParallelConfig parallel;
  parallel.accumulate_allreduce_grads_in_fp32 = true;
  const OptimizerConfig adam;

  const Stream stream = stream_under_test();
  CachingAllocator& allocator = allocator_of(stream.device);
  allocator.empty_cache();
  const MemoryStats before = allocator.stats();
  const T5Model model(config, stream);
  initialize(model, 1);
  FlatParameters flat(optimized_parameters(model), {.accumulate_allreduce_grads_in_fp32 = true});
  allocator.empty_cache();
  Optimizer optimizer(flat, adam);
  allocator.reset_peaks();
  RandomState random(1);
  const Tensor seed = full({}, 1, DType::kFloat32, stream);
  const auto threes = [batch](int64_t length) {
    const std::vector<int64_t> ids(static_cast<size_t>(batch * length), 3);
    return tensor_of(ids, {batch, length});
  };
  for (int iteration = 0; iteration < 2; ++iteration) {
    flat.zero_grads();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const Tensor labels = threes(config.decoder_seq_length);
      const ModelInput input = {
          .tokens = threes(config.seq_length),
          .padding_mask = zeros({batch, config.seq_length}, DType::kBool, Stream{}),
          .decoder_tokens = labels};
      const Tensor mask = full(labels.shape(), 1, DType::kFloat32, stream);
      const Variable loss =
          token_loss(model, model.hidden_states(input, random),
                     {.labels = labels.to(stream), .loss_mask = mask, .seed = seed});
      backward(loss, seed);
    }
    optimizer.step({.lr = 1e-3, .weight_decay = 0.1});
  }
  const MemoryStats after = allocator.stats();

  const DryIteration plan = dry_iteration({.transformer = config,
                                           .parallel = parallel,
                                           .optimizer = adam,
                                           .micro_batch_size = batch,
                                           .num_microbatches = 2,
                                           .device = stream.device.type},
                                          0);
  EXPECT_EQ(plan.num_parameters, flat.num_elements());
  EXPECT_EQ(plan.num_parameters, num_model_parameters(config));
  for (const MemoryCategory category : {MemoryCategory::kParameters, MemoryCategory::kGradients,
                                        MemoryCategory::kOptimizer, MemoryCategory::kActivations}) {
    const auto at = static_cast<size_t>(category);
    const auto took = static_cast<double>(after.peak_by_category[at] - before.by_category[at]);
    EXPECT_NEAR(static_cast<double>(plan.stats.peak_by_category[at]), took, 0.03 * took)
        << name_of(category);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, T5PlanTest, testing::ValuesIn(kT5PlanVariants),
                         [](const auto& variant) { return std::string(variant.param.name); });

}  // namespace
}  // namespace megatron
