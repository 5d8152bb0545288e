// The plan against what the allocator counted: small BERTs train two iterations.
#include <gtest/gtest.h>

#include "megatron/models/bert/bert_model.h"
#include "megatron/models/training_plan.h"
#include "megatron/ops/elementwise.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/optimizer.h"
#include "tests/models/gpt/small_config.h"
#include "tests/support/device_under_test.h"

namespace megatron {
namespace {

struct Variant {
  const char* name;
  void (*change)(TransformerConfig& config);
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

const Variant kVariants[] = {
    {"plain", [](TransformerConfig&) {}},
    {"bf16", [](TransformerConfig& c) { c.params_dtype = DType::kBFloat16; }},
    {"dropout", [](TransformerConfig& c) { c.hidden_dropout = c.attention_dropout = 0.1; }},
    {"without_binary_head", [](TransformerConfig& c) { c.bert_binary_head = false; }},
    {"post_layernorm",
     [](TransformerConfig& c) { c.apply_residual_connection_post_layernorm = true; }},
    {"small_vocabulary", [](TransformerConfig& c) { c.padded_vocab_size = 32; }},
    {"recomputed",
     [](TransformerConfig& c) {
       c.recompute_granularity = RecomputeGranularity::kFull;
       c.recompute_method = RecomputeMethod::kUniform;
       c.recompute_num_layers = 1;
     }},
};

TransformerConfig config_of(const Variant& variant) {
  TransformerConfig c = small_config(4);
  c.kind = ModelKind::kBert;
  variant.change(c);
  return resolved(c);
}

class BertPlanTest : public testing::TestWithParam<Variant> {};

TEST_P(BertPlanTest, IsWhatTrainingTakes) {
  if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
  const TransformerConfig config = config_of(GetParam());
  constexpr int64_t kBatch = 2;
  ParallelConfig parallel;
  parallel.accumulate_allreduce_grads_in_fp32 = true;
  const OptimizerConfig adam;

  const Stream stream = stream_under_test();
  CachingAllocator& allocator = allocator_of(stream.device);
  allocator.empty_cache();
  const MemoryStats before = allocator.stats();
  const BertModel model(config, stream);
  initialize(model, 1);
  FlatParameters flat(optimized_parameters(model), {.accumulate_allreduce_grads_in_fp32 = true});
  allocator.empty_cache();
  Optimizer optimizer(flat, adam);
  allocator.reset_peaks();
  RandomState random(1);
  for (int iteration = 0; iteration < 2; ++iteration) {
    flat.zero_grads();
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      const Shape shape = {kBatch, config.seq_length};
      const std::vector<int64_t> threes(static_cast<size_t>(shape.numel()), 3);
      const Tensor ids = tensor_of(threes, shape);
      const Tensor types = zeros(shape, DType::kInt64, Stream{});
      const BertInput input = {.tokens = ids,
                               .token_types = config.tokentypes() > 0 ? RowIds(types) : RowIds(),
                               .padding_mask = zeros(shape, DType::kBool, Stream{})};
      const BertLosses losses =
          bert_losses(model, model.forward(input, Variable(), random),
                      {ids, full(shape, 1, DType::kFloat32, {}), zeros({kBatch}, DType::kInt64, {}),
                       full({kBatch, 1}, 1, DType::kFloat32, stream)});
      backward(losses.sop.defined() ? add(losses.lm, losses.sop) : losses.lm);
    }
    optimizer.step({.lr = 1e-3, .weight_decay = 0.1});
  }
  const MemoryStats after = allocator.stats();

  const RankMemory plan = rank_memory({.transformer = config,
                                       .parallel = parallel,
                                       .optimizer = adam,
                                       .micro_batch_size = kBatch,
                                       .num_microbatches = 2,
                                       .device = stream.device.type},
                                      0);
  EXPECT_EQ(plan.num_parameters, flat.num_elements());
  EXPECT_EQ(plan.num_parameters, num_model_parameters(config));
  for (const MemoryCategory category : {MemoryCategory::kParameters, MemoryCategory::kGradients,
                                        MemoryCategory::kOptimizer, MemoryCategory::kActivations}) {
    const auto at = static_cast<size_t>(category);
    const auto took = static_cast<double>(after.peak_by_category[at] - before.by_category[at]);
    EXPECT_NEAR(static_cast<double>(plan.bytes(category)), took, 0.05 * took) << name_of(category);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, BertPlanTest, testing::ValuesIn(kVariants),
                         [](const auto& variant) { return std::string(variant.param.name); });

}  // namespace
}  // namespace megatron
