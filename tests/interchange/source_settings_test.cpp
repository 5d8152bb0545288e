#include "megatron/interchange/source_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

// A setting, and the one that gives it an effect.
struct DependentSetting {
  const char* flag;
  void (*change)(TransformerConfig& config);
  void (*enable)(TransformerConfig& config);
  void (*disable)(TransformerConfig& config);
};

void use_rope(TransformerConfig& config) {
  config.position_embedding_type = PositionEmbedding::kRope;
}
void use_learned_positions(TransformerConfig& config) {
  config.position_embedding_type = PositionEmbedding::kLearnedAbsolute;
}

const DependentSetting kDependentSettings[] = {
    {"--max-position-embeddings", [](TransformerConfig& c) { c.max_position_embeddings = 64; },
     use_learned_positions, use_rope},
    {"--rotary-base", [](TransformerConfig& c) { c.rotary_base = 5e5; }, use_rope,
     use_learned_positions},
    {"--rotary-percent", [](TransformerConfig& c) { c.rotary_percent = 0.5; }, use_rope,
     use_learned_positions},
    {"--rotary-interleaved", [](TransformerConfig& c) { c.rotary_interleaved = true; }, use_rope,
     use_learned_positions},
    {"--rotary-seq-len-interpolation-factor",
     [](TransformerConfig& c) { c.rotary_seq_len_interpolation_factor = 2; }, use_rope,
     use_learned_positions},
    {"--use-rope-scaling", [](TransformerConfig& c) { c.use_rope_scaling = true; }, use_rope,
     use_learned_positions},
    {"--rope-scaling-factor", [](TransformerConfig& c) { c.rope_scaling_factor = 4.0; },
     [](TransformerConfig& c) {
       use_rope(c);
       c.use_rope_scaling = true;
     },
     use_rope},
    {"--moe-router-topk", [](TransformerConfig& c) { c.moe_router_topk = 3; },
     [](TransformerConfig& c) { c.num_experts = 4; }, [](TransformerConfig&) {}},
};

TransformerConfig dependent_config(void (*set)(TransformerConfig& config)) {
  TransformerConfig config;
  config.num_layers = 2;
  config.hidden_size = 16;
  config.num_attention_heads = 4;
  config.seq_length = config.max_position_embeddings = 32;
  set(config);
  return config;
}

TEST(SourceSettingsTest, ASettingContradictsOnlyWhereItHasAnEffect) {
  for (const DependentSetting& setting : kDependentSettings) {
    for (const bool has_effect : {false, true}) {
      const TransformerConfig theirs =
          dependent_config(has_effect ? setting.enable : setting.disable);
      TransformerConfig ours = theirs;
      setting.change(ours);
      const std::vector<std::string> found = contradictions(resolved(theirs), resolved(ours));
      if (has_effect) {
        EXPECT_THAT(found, ElementsAre(StartsWith(setting.flag))) << setting.flag;
      } else {
        EXPECT_THAT(found, IsEmpty()) << setting.flag;
      }
    }
  }
}

// As many groups as heads are no groups, whichever flag says so.
TEST(SourceSettingsTest, EqualGroupsAreNoContradiction) {
  TransformerConfig theirs = dependent_config(use_rope);
  TransformerConfig ours = theirs;
  ours.group_query_attention = true;
  ours.num_query_groups = ours.num_attention_heads;
  EXPECT_THAT(contradictions(resolved(theirs), resolved(ours)), IsEmpty());
  ours.num_query_groups = 2;
  EXPECT_FALSE(contradictions(resolved(theirs), resolved(ours)).empty());
}

// --add-qkv-bias adds nothing to layers that all have biases.
TEST(SourceSettingsTest, QkvBiasOfBiasedLayersIsNoContradiction) {
  TransformerConfig theirs = dependent_config(use_rope);
  for (const bool all_have_biases : {true, false}) {
    theirs.add_bias_linear = all_have_biases;
    TransformerConfig ours = theirs;
    ours.add_qkv_bias = true;
    EXPECT_EQ(contradictions(resolved(theirs), resolved(ours)).empty(), all_have_biases);
  }
}

}  // namespace
}  // namespace megatron
