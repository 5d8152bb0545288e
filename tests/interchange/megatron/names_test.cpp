#include "megatron/interchange/megatron/names.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>

#include "megatron/core/error.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/models/model_specs.h"
#include "tests/support/source_path.h"

namespace megatron {
namespace {

constexpr MegatronNaming kNamings[] = {MegatronNaming::kLegacy, MegatronNaming::kLegacyLayerNorm,
                                       MegatronNaming::kLegacyFused, MegatronNaming::kCore,
                                       MegatronNaming::kCoreFused};

TransformerConfig config_of(ModelKind kind) {
  TransformerConfig config;
  config.kind = kind;
  config.num_layers = 2;
  config.hidden_size = 8;
  config.num_attention_heads = 4;
  config.seq_length = 4;
  config.max_position_embeddings = 4;
  config.untie_embeddings_and_output_weights = kind == ModelKind::kGpt;
  config = resolved(config);
  config.padded_vocab_size = 16;
  return config;
}

TEST(MegatronNamesTest, EveryParameterIsFoundUnderEverySpelling) {
  for (const ModelKind kind : {ModelKind::kGpt, ModelKind::kBert}) {
    for (const MegatronNaming naming : kNamings) {
      std::vector<std::string> theirs;
      for (const TensorSpec& spec : model_tensors(config_of(kind))) {
        std::optional<int64_t> layer;
        const std::string ours = without_layer(spec.name, layer);
        const std::string name = with_layer(megatron_name(kind, naming, ours), layer.value_or(0));
        EXPECT_EQ(std::ranges::count(theirs, name), 0) << name;
        theirs.push_back(name);
        const std::optional<MegatronName> found = find_megatron_name(kind, name);
        ASSERT_TRUE(found) << name;
        EXPECT_EQ(found->ours, ours);
        EXPECT_EQ(found->layer, layer);
        EXPECT_FALSE(found->is_tied_copy);
      }
      EXPECT_EQ(kind_of_paths(theirs), kind);
    }
  }
}

TEST(MegatronNamesTest, EveryParameterOfARetroIsFoundUnderEverySpellingThatKnowsIt) {
  TransformerConfig config = config_of(ModelKind::kGpt);
  config.num_layers = 3;
  config.retro = {.add_retriever = true, .layer_numbers = {2, 3}, .encoder_layers = 3};
  const std::set<int64_t> attending = {1, 2};
  for (const MegatronNaming naming : kNamings) {
    if (naming == MegatronNaming::kLegacyFused) continue;
    std::vector<std::string> ours;
    std::vector<std::string> theirs;
    for (const TensorSpec& spec : model_tensors(config)) {
      std::optional<int64_t> layer;
      const std::string pattern = without_layer(spec.name, layer);
      const bool attends = layer && attending.contains(*layer);
      const std::string name =
          with_layer(megatron_name(ModelKind::kGpt, naming, pattern, attends), layer.value_or(0));
      EXPECT_EQ(std::ranges::count(theirs, name), 0) << name;
      ours.push_back(spec.name);
      theirs.push_back(name);
      const auto found = find_megatron_name(ModelKind::kGpt, name, attends);
      ASSERT_TRUE(found) << name;
      EXPECT_EQ(found->ours, pattern) << name;
      EXPECT_EQ(found->layer, layer);
    }
    EXPECT_EQ(layers_that_attend(ours), attending);
    EXPECT_EQ(layers_that_attend(theirs), attending);
    EXPECT_EQ(kind_of_paths(theirs), ModelKind::kGpt);
  }
  EXPECT_THROW(megatron_name(ModelKind::kGpt, MegatronNaming::kLegacyFused,
                             "decoder.layers.{i}.cross_attention.attn.linear_q.weight", true),
               Unsupported);
}

// The modules of Megatron-LM's constructors, in their order.
TEST(MegatronNamesTest, RegistersTheLayerOfARetro) {
  const std::string layer = "decoder.layers.5.";
  const std::string encoder = layer + "cross_attention.encoder.layers.";
  const std::vector<std::string> legacy = {layer + "self_attention.linear_proj.weight",
                                           layer + "pre_cross_attn_layernorm.weight",
                                           layer + "cross_attention.attn.linear_q.weight",
                                           layer + "cross_attention.attn.linear_kv.weight",
                                           layer + "cross_attention.attn.linear_proj.weight",
                                           layer + "pre_mlp_layernorm.weight",
                                           layer + "mlp.linear_fc2.weight",
                                           encoder + "0.input_layernorm.weight",
                                           encoder + "0.cross_attention.attn.linear_q.weight",
                                           encoder + "0.pre_mlp_layernorm.weight",
                                           encoder + "1.input_layernorm.weight",
                                           encoder + "10.mlp.linear_fc2.weight",
                                           "decoder.layers.6.input_layernorm.weight"};
  const std::vector<std::string> core = {layer + "self_attention.linear_proj.weight",
                                         layer + "pre_cross_attn_layernorm.weight",
                                         layer + "cross_attention.attn.linear_proj.weight",
                                         layer + "cross_attention.attn.linear_q.weight",
                                         layer + "cross_attention.attn.linear_kv.weight",
                                         encoder + "0.input_layernorm.weight",
                                         encoder + "0.cross_attention.attn.linear_q.weight",
                                         encoder + "0.pre_mlp_layernorm.weight",
                                         encoder + "1.input_layernorm.weight",
                                         encoder + "10.mlp.linear_fc2.weight",
                                         layer + "pre_mlp_layernorm.weight",
                                         layer + "mlp.linear_fc2.weight",
                                         "decoder.layers.6.input_layernorm.weight"};
  std::vector<std::string> names = legacy;
  std::ranges::reverse(names);
  EXPECT_EQ(registration_order(MegatronNaming::kLegacy, names), legacy);
  EXPECT_EQ(registration_order(MegatronNaming::kCore, names), core);
}

TEST(MegatronNamesTest, RegistersTheHeadsOfABertInTheirOrder) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : model_tensors(config_of(ModelKind::kBert))) {
    if (stack_of(spec.name).empty()) names.push_back(spec.name);
  }
  names.emplace_back("output_layer.weight");  // the tied copy
  std::ranges::reverse(names);
  const std::vector<std::string> embeddings = {"embedding.word_embeddings.weight",
                                               "embedding.position_embeddings.weight",
                                               "embedding.tokentype_embeddings.weight"};
  const auto after = [&](std::vector<std::string> heads) {
    heads.insert(heads.begin(), embeddings.begin(), embeddings.end());
    return heads;
  };
  EXPECT_EQ(
      registration_order(MegatronNaming::kLegacy, names),
      after({"pooler.dense.weight", "pooler.dense.bias", "output_layer.weight", "output_layer.bias",
             "lm_head.dense.weight", "lm_head.dense.bias", "lm_head.layer_norm.weight",
             "lm_head.layer_norm.bias", "binary_head.weight", "binary_head.bias"}));
  EXPECT_EQ(registration_order(MegatronNaming::kCore, names),
            after({"lm_head.dense.weight", "lm_head.dense.bias", "lm_head.layer_norm.weight",
                   "lm_head.layer_norm.bias", "output_layer.weight", "output_layer.bias",
                   "binary_head.weight", "binary_head.bias", "pooler.dense.weight",
                   "pooler.dense.bias"}));
}

// "legacy: THEIRS = OURS" and the like, as tests/cases/megatron_names.txt says.
void expect_case(std::string kind, const std::string& theirs, const std::string& ours) {
  const std::string retro = "retro-";  // the layer attends to neighbours
  const bool attends = kind.starts_with(retro);
  if (attends) kind.erase(0, retro.size());
  const std::map<std::string, MegatronNaming> namings = {
      {"legacy", MegatronNaming::kLegacy},
      {"legacy-layernorm", MegatronNaming::kLegacyLayerNorm},
      {"legacy-fused", MegatronNaming::kLegacyFused},
      {"core", MegatronNaming::kCore},
      {"core-fused", MegatronNaming::kCoreFused}};
  std::optional<int64_t> layer;
  const std::string pattern = without_layer(ours, layer);
  if (kind != "old" && kind != "none") {
    const MegatronNaming naming = namings.at(kind);
    if (theirs == "nowhere") {
      EXPECT_THROW(megatron_name(ModelKind::kGpt, naming, pattern, attends), Unsupported) << ours;
      return;
    }
    EXPECT_EQ(
        with_layer(megatron_name(ModelKind::kGpt, naming, pattern, attends), layer.value_or(0)),
        theirs);
  }
  const std::optional<MegatronName> found = find_megatron_name(ModelKind::kGpt, theirs, attends);
  ASSERT_EQ(found.has_value(), kind != "none") << theirs;
  if (!found) return;
  EXPECT_EQ(found->ours, pattern) << theirs;
  EXPECT_EQ(found->layer, layer) << theirs;
}

TEST(MegatronNamesTest, AreTheCases) {
  std::ifstream file(source_path("tests/cases/megatron_names.txt"));
  ASSERT_TRUE(file.is_open());
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with("#")) continue;
    std::istringstream stream(line);
    std::string kind, theirs, sign, ours;
    stream >> kind >> theirs >> sign >> ours;
    kind.pop_back();
    expect_case(kind, theirs, ours);
    cases += 1;
  }
  EXPECT_GT(cases, 30);
}

TEST(MegatronNamesTest, TheLastStageHasACopyOfTheEmbedding) {
  EXPECT_TRUE(find_megatron_name(ModelKind::kGpt, "word_embeddings_for_head.weight")->is_tied_copy);
}

}  // namespace
}  // namespace megatron
