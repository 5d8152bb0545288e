#include "megatron/interchange/megatron/names.h"

#include <gmock/gmock.h>

#include <set>

#include "megatron/core/error.h"
#include "megatron/interchange/hf/names.h"
#include "megatron/models/gpt/gpt_parameters.h"

namespace megatron {
namespace {

constexpr MegatronNaming kNamings[] = {MegatronNaming::kLegacy, MegatronNaming::kLegacyLayerNorm,
                                       MegatronNaming::kLegacyFused, MegatronNaming::kCore,
                                       MegatronNaming::kCoreFused};

TransformerConfig gpt_config() {
  TransformerConfig config;
  config.num_layers = 2;
  config.hidden_size = 8;
  config.num_attention_heads = 4;
  config.seq_length = 4;
  config.max_position_embeddings = 4;
  config.untie_embeddings_and_output_weights = true;
  config = resolved(config);
  config.padded_vocab_size = 16;
  return config;
}

TEST(MegatronNamesTest, EveryParameterIsFoundUnderEverySpelling) {
  for (const MegatronNaming naming : kNamings) {
    std::set<std::string> theirs;
    for (const TensorSpec& spec : gpt_parameters(gpt_config())) {
      std::optional<int64_t> layer;
      const std::string ours = without_layer(spec.name, layer);
      const std::string name = with_layer(megatron_name(naming, ours), layer.value_or(0));
      EXPECT_TRUE(theirs.insert(name).second) << name;
      const std::optional<MegatronName> found = find_megatron_name(name);
      ASSERT_TRUE(found) << name;
      EXPECT_EQ(found->ours, ours);
      EXPECT_EQ(found->layer, layer);
      EXPECT_FALSE(found->is_tied_copy);
    }
  }
}

TEST(MegatronNamesTest, KnowsOldPaths) {
  const auto ours = [](const char* path) {
    const auto found = find_megatron_name(path);
    return found ? found->ours : "";
  };
  EXPECT_EQ(ours("language_model.transformer.layers.7.attention.query_key_value.weight"),
            "decoder.layers.{i}.self_attention.linear_qkv.weight");
  EXPECT_EQ(ours("transformer.layers.7.post_attention_layernorm.bias"),
            "decoder.layers.{i}.pre_mlp_layernorm.bias");
  EXPECT_EQ(ours("language_model.transformer.final_layernorm.weight"),
            "decoder.final_layernorm.weight");
  EXPECT_EQ(ours("word_embeddings.weight"), "embedding.word_embeddings.weight");
  EXPECT_EQ(ours("language_model.pooler.dense.weight"), "");
  EXPECT_TRUE(find_megatron_name("word_embeddings_for_head.weight")->is_tied_copy);
  EXPECT_THROW(megatron_name(MegatronNaming::kLegacy,
                             "decoder.layers.{i}.self_attention.q_layernorm.weight"),
               Unsupported);
}

}  // namespace
}  // namespace megatron
