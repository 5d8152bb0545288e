// Parameter properties of modules against every name table of this folder.
#include <gmock/gmock.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/checkpoint/contents.h"
#include "megatron/core/error.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/interchange/megatron/names.h"
#include "megatron/interchange/megatron/parameter_table.h"
#include "megatron/models/gpt/gpt_model.h"
#include "megatron/models/model_specs.h"

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
    {"HeadNorms", [](TransformerConfig& c) { c.qk_layernorm = true; }},
    {"Llama",
     [](TransformerConfig& c) {
       c.position_embedding_type = PositionEmbedding::kRope;
       c.normalization = Normalization::kRmsNorm;
       c.activation = Activation::kSwiglu;
       c.add_bias_linear = false;
       c.untie_embeddings_and_output_weights = true;
     }},
};

// Some spellings of Megatron-LM's models have no norm of the embedding, others none of heads.
bool has_no_place(MegatronNaming naming, const std::string& ours) {
  try {
    megatron_name(ModelKind::kGpt, naming, ours);
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
  const std::vector<Parameter> specs = gpt_specs(config());
  const std::vector<TensorSpec> listed = model_tensors(config());
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
    for (const Parameter& spec : gpt_specs(config())) {
      std::optional<int64_t> layer;
      const std::string ours = without_layer(spec.name, layer);
      const bool is_rare = ours.starts_with("embedding.norm") ||
                           ours.find("q_layernorm") != std::string::npos ||
                           ours.find("k_layernorm") != std::string::npos;
      if (is_rare && has_no_place(naming, ours)) continue;
      const std::string theirs =
          with_layer(megatron_name(ModelKind::kGpt, naming, ours), layer.value_or(0));
      const std::optional<MegatronName> found = find_megatron_name(ModelKind::kGpt, theirs);
      ASSERT_TRUE(found) << theirs;
      EXPECT_EQ(found->ours, ours);
    }
  }
}

// Files are read by a table that knows no options but the gate.
TEST_P(SpecsTest, AreInTheTableOfEveryGpt) {
  const ParameterTable table = parameter_table(ModelKind::kGpt, config().is_gated());
  for (const Parameter& spec : gpt_specs(config())) {
    const ParameterInfo& info = table.at(spec.name);
    EXPECT_EQ(info.sharding, spec.info.sharding) << spec.name;
    EXPECT_EQ(info.role, spec.info.role) << spec.name;
    EXPECT_EQ(info.is_embedding_or_output, spec.info.is_embedding_or_output) << spec.name;
    EXPECT_EQ(has_vocabulary_rows(spec.name), spec.info.has_vocabulary_rows) << spec.name;
  }
}

// A family that can express the model has a name for everything in it.
TEST_P(SpecsTest, HaveNamesInHuggingFace) {
  const HfFamily* family = nullptr;
  try {
    family = &hf_family_of(config());
  } catch (const Unsupported&) {
    GTEST_SKIP() << "no family of Hugging Face has this option alone";
  }
  const std::vector<TensorSpec> ours = model_tensors(config());
  EXPECT_EQ(mapped(hf_names(*family, config()), ours).size(), ours.size());
}

// The tensor-parallel division of a model in Megatron-LM, fixed by existing files.
TEST(ParameterTableTest, DividesAsMegatronLm) {
  constexpr int kWhole = -1;
  const std::pair<const char*, int> axes[] = {
      {"embedding.word_embeddings.weight", 0},
      {"embedding.position_embeddings.weight", kWhole},
      {"decoder.layers.{i}.input_layernorm.weight", kWhole},
      {"decoder.layers.{i}.self_attention.linear_qkv.weight", 0},
      {"decoder.layers.{i}.self_attention.linear_qkv.bias", 0},
      {"decoder.layers.{i}.self_attention.q_layernorm.weight", kWhole},
      {"decoder.layers.{i}.self_attention.linear_proj.weight", 1},
      {"decoder.layers.7.self_attention.linear_proj.bias", kWhole},
      {"decoder.layers.7.mlp.linear_fc1.weight", 0},
      {"decoder.layers.7.mlp.linear_fc1.bias", 0},
      {"decoder.layers.7.mlp.linear_fc2.weight", 1},
      {"decoder.layers.7.mlp.linear_fc2.bias", kWhole},
      {"output_layer.weight", 0}};
  for (const bool is_gated : {false, true}) {
    const ParameterTable table = parameter_table(ModelKind::kGpt, is_gated);
    for (const auto& [name, axis] : axes) {
      const bool is_gate = is_gated && std::string_view(name).find("fc1") != std::string_view::npos;
      Sharding want;
      if (axis != kWhole) want = {{.axis = axis, .parts = is_gate ? 2 : 1}};
      EXPECT_EQ(table.at(name).sharding, want) << name;
    }
  }
  EXPECT_THROW(parameter_table(ModelKind::kGpt, false).at("pooler.dense.weight"), Unsupported);
}

INSTANTIATE_TEST_SUITE_P(Options, SpecsTest, testing::ValuesIn(kOptions),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace megatron
