// What modules say of their parameters, against every table of this folder that names them.
#include <gmock/gmock.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/core/error.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/gpt/gpt_parameters.h"

namespace megatron {
namespace {

struct Option {
  const char* name;
  std::function<void(TransformerConfig&)> set;
};

void PrintTo(const Option& option, std::ostream* stream) { *stream << option.name; }

const Option kOptions[] = {
    {"Gpt2", [](TransformerConfig&) {}},
    {"Untied", [](TransformerConfig& c) { c.untie_embeddings_and_output_weights = true; }},
    {"Rope", [](TransformerConfig& c) { c.position_embedding_type = PositionEmbedding::kRope; }},
    {"Alibi", [](TransformerConfig& c) { c.position_embedding_type = PositionEmbedding::kAlibi; }},
    {"RmsNorm", [](TransformerConfig& c) { c.normalization = Normalization::kRmsNorm; }},
    {"NoBias", [](TransformerConfig& c) { c.add_bias_linear = false; }},
    {"QkvBias",
     [](TransformerConfig& c) {
       c.add_bias_linear = false;
       c.add_qkv_bias = true;
     }},
    {"Gated", [](TransformerConfig& c) { c.activation = Activation::kSwiglu; }},
    {"Groups",
     [](TransformerConfig& c) {
       c.group_query_attention = true;
       c.num_query_groups = 2;
     }},
    {"EmbedNorm", [](TransformerConfig& c) { c.embed_layernorm = true; }},
    {"Llama",
     [](TransformerConfig& c) {
       c.position_embedding_type = PositionEmbedding::kRope;
       c.normalization = Normalization::kRmsNorm;
       c.activation = Activation::kSwiglu;
       c.add_bias_linear = false;
       c.untie_embeddings_and_output_weights = true;
     }},
};

// Some spellings of Megatron-LM's models have no norm of the embedding.
bool has_no_place(MegatronNaming naming, const std::string& ours) {
  try {
    megatron_name(naming, ours);
    return false;
  } catch (const Unsupported&) {
    return true;
  }
}

class SpecsTest : public testing::TestWithParam<Option> {
 protected:
  static TransformerConfig config() {
    TransformerConfig config;
    config.num_layers = 2;
    config.hidden_size = 8;
    config.num_attention_heads = 4;
    config.seq_length = 4;
    config.max_position_embeddings = 4;
    GetParam().set(config);
    config = resolved(config);
    config.padded_vocab_size = 16;
    return config;
  }
};

TEST_P(SpecsTest, AreTheListOfParameters) {
  const std::vector<ParameterSpec> specs = gpt_specs(config());
  const std::vector<TensorSpec> listed = gpt_parameters(config());
  ASSERT_EQ(specs.size(), listed.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(specs[i].name, listed[i].name);
    EXPECT_EQ(specs[i].shape, listed[i].shape) << specs[i].name;
    EXPECT_EQ(specs[i].dtype, listed[i].dtype) << specs[i].name;
  }
}

TEST_P(SpecsTest, HaveNamesInMegatronLm) {
  for (const MegatronNaming naming :
       {MegatronNaming::kLegacy, MegatronNaming::kLegacyLayerNorm, MegatronNaming::kLegacyFused,
        MegatronNaming::kCore, MegatronNaming::kCoreFused}) {
    for (const ParameterSpec& spec : gpt_specs(config())) {
      std::optional<int64_t> layer;
      const std::string ours = without_layer(spec.name, layer);
      if (ours.starts_with("embedding.norm") && has_no_place(naming, ours)) continue;
      const std::string theirs = with_layer(megatron_name(naming, ours), layer.value_or(0));
      const std::optional<MegatronName> found = find_megatron_name(theirs);
      ASSERT_TRUE(found) << theirs;
      EXPECT_EQ(found->ours, ours);
    }
  }
}

TEST_P(SpecsTest, AreDividedAsInMegatronLm) {
  for (const ParameterSpec& spec : gpt_specs(config())) {
    const Sharding& sharding = spec.info.sharding;
    ShardKind want = ShardKind::kWhole;
    if (sharding.axis == 0) want = sharding.parts == 2 ? ShardKind::kGateUp : ShardKind::kRows;
    if (sharding.axis == 1) want = ShardKind::kColumns;
    EXPECT_EQ(shard_kind_of(spec.name, config().is_gated()), want) << spec.name;
    EXPECT_EQ(has_vocabulary_rows(spec.name), spec.info.has_vocabulary_rows) << spec.name;
  }
}

// A family that can express the model has a name for everything in it.
TEST_P(SpecsTest, HaveNamesInHuggingFace) {
  HfFamily family = HfFamily::kGpt2;
  try {
    family = hf_family_of(config());
  } catch (const Unsupported&) {
    GTEST_SKIP() << "no family of Hugging Face has this option alone";
  }
  const std::vector<TensorSpec> ours = gpt_parameters(config());
  EXPECT_EQ(mapped(hf_names(family, config()), ours).size(), ours.size());
}

INSTANTIATE_TEST_SUITE_P(Options, SpecsTest, testing::ValuesIn(kOptions),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace megatron
