// The plan against what the allocator counted: small BERTs train two iterations.
#include <gtest/gtest.h>

#include "megatron/models/bert/bert_model.h"
#include "megatron/ops/elementwise.h"
#include "tests/models/gpt/small_config.h"
#include "tests/models/plan_trial.h"

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
  const auto losses_of = [&](const BertModel& model, RandomState& random, const Tensor& seed) {
    const Tensor ids = planned_ids(config, kBatch);
    const Shape& shape = ids.shape();
    const Tensor types = zeros(shape, DType::kInt64, Stream{});
    const ModelInput input = {.tokens = ids,
                              .token_types = config.tokentypes() > 0 ? RowIds(types) : RowIds(),
                              .padding_mask = zeros(shape, DType::kBool, Stream{})};
    const BertLosses losses =
        bert_losses(model, model.hidden_states(input, random),
                    {.labels = ids,
                     .loss_mask = full(shape, 1, DType::kFloat32, {}),
                     .is_random = zeros({kBatch}, DType::kInt64, {}),
                     .seed = seed},
                    full({kBatch, 1}, 1, DType::kFloat32, stream_under_test()));
    std::vector<Variable> all = {losses.lm};
    if (losses.sop.defined()) all.push_back(losses.sop);
    return all;
  };
  plan_trial<BertModel>(config, kBatch, losses_of).expect_within(0.05);
}

INSTANTIATE_TEST_SUITE_P(Variants, BertPlanTest, testing::ValuesIn(kVariants),
                         [](const auto& variant) { return std::string(variant.param.name); });

}  // namespace
}  // namespace megatron
