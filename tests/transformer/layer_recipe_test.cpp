#include "megatron/transformer/layer_recipe.h"

#include <sstream>

#include "tests/transformer/tiny_stack.h"

namespace megatron {
namespace {

// "input_layernorm self_attention | ...": the branches of a layer in their order, with "x" before a
// norm that reads the input of the layer, "norm" before a part that reads the first norm's output
// and "+norm" behind a part that is added to its norm.
std::string branches_of(const LayerRecipe& recipe) {
  std::ostringstream text;
  for (const BranchRecipe& branch : recipe.branches) {
    text << (text.tellp() > 0 ? " | " : "")
         << (branch.input == BranchInput::kLayerInput  ? "x "
             : branch.input == BranchInput::kFirstNorm ? "norm "
                                                       : "")
         << branch.norm << (branch.norm.empty() ? "" : " ") << branch.name
         << (branch.post_norm.empty() ? "" : " ") << branch.post_norm
         << (branch.residual_is_normed ? " +norm" : "");
  }
  return text.str();
}

struct LayerKind {
  const char* name;
  Stack stack;
  void (*change)(TransformerConfig& config);
  const char* branches;
};
void PrintTo(const LayerKind& kind, std::ostream* out) { *out << kind.name; }

const LayerKind kLayerKinds[] = {
    {"gpt", kDecoder, [](TransformerConfig&) {},
     "input_layernorm self_attention | pre_mlp_layernorm mlp"},
    {"neox", kDecoder, [](TransformerConfig& c) { c.parallel_residual = true; },
     "input_layernorm self_attention | x pre_mlp_layernorm mlp"},
    {"gptj", kDecoder,
     [](TransformerConfig& c) { c.parallel_residual = c.parallel_residual_shares_norm = true; },
     "input_layernorm self_attention | norm mlp"},
    {"olmo2", kDecoder, [](TransformerConfig& c) { c.norm_placement = NormPlacement::kAfter; },
     "self_attention post_self_attn_layernorm | mlp post_mlp_layernorm"},
    {"gemma2", kDecoder, [](TransformerConfig& c) { c.norm_placement = NormPlacement::kBoth; },
     "input_layernorm self_attention post_self_attn_layernorm | "
     "pre_mlp_layernorm mlp post_mlp_layernorm"},
    {"bert", kEncoder, [](TransformerConfig&) {},
     "input_layernorm self_attention | pre_mlp_layernorm mlp"},
    {"post_layernorm_residual", kEncoder,
     [](TransformerConfig& c) { c.apply_residual_connection_post_layernorm = true; },
     "input_layernorm self_attention +norm | pre_mlp_layernorm mlp +norm"},
    {"t5_decoder", kCrossDecoder, [](TransformerConfig&) {},
     "input_layernorm self_attention | pre_cross_attn_layernorm cross_attention | "
     "pre_mlp_layernorm mlp"},
};

class LayerKindTest : public testing::TestWithParam<LayerKind> {};

TEST_P(LayerKindTest, HasItsBranches) {
  TransformerConfig c = tiny_config();
  GetParam().change(c);
  const LayerRecipe recipe = layer_recipe(c, GetParam().stack, 1);
  EXPECT_EQ(branches_of(recipe), GetParam().branches);
  EXPECT_EQ(recipe.place.name, GetParam().stack.name + ".layers.1");
  EXPECT_EQ(recipe.place.layer, 1);
  EXPECT_EQ(recipe.place.is_causal, GetParam().stack.is_causal);
}

INSTANTIATE_TEST_SUITE_P(Stacks, LayerKindTest, testing::ValuesIn(kLayerKinds),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(LayerRecipeTest, LayersMayLeaveOutRotation) {
  TransformerConfig c = tiny_config();
  c.num_layers = 4;
  c.position_embedding_type = PositionEmbedding::kRope;
  c.no_rope_layers = {2};
  c = resolved(c);
  EXPECT_EQ(c.no_rope_layers, (std::vector<int>{0, 1, 0, 1}));
  for (int64_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(layer_recipe(c, kDecoder, layer).config.position_embedding_type,
              layer % 2 == 0 ? PositionEmbedding::kRope : PositionEmbedding::kNone)
        << layer;
  }
}

// The layers of a stack that compute in FP8, "-" for those in 16 bits.
std::string layers_in_fp8(const TransformerConfig& c, const Stack& stack, int64_t num_layers) {
  std::string text;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    text += layer_recipe(c, stack, layer).config.fp8.is_on() ? '8' : '-';
  }
  return text;
}

TEST(LayerRecipeTest, SomeLayersHaveAWindow) {
  TransformerConfig c = tiny_config();
  c.attention_window = 5;
  EXPECT_EQ(layer_recipe(c, kDecoder, 1).config.attention_window, 5);
  c.window_layers = {1, 0};
  EXPECT_EQ(layer_recipe(c, kDecoder, 0).config.attention_window, 5);
  EXPECT_EQ(layer_recipe(c, kDecoder, 1).config.attention_window, 0);
}

TEST(LayerRecipeTest, TheFirstAndTheLastLayersMayStayIn16Bits) {
  TransformerConfig c = tiny_config();
  c.num_layers = 6;
  c.decoder_num_layers = 4;
  c.fp8.format = Fp8Format::kHybrid;
  EXPECT_EQ(layers_in_fp8(c, kDecoder, 6), "888888");
  c.fp8.first_last_layers_bf16 = true;
  c.fp8.num_layers_at_end_in_bf16 = 2;
  EXPECT_EQ(layers_in_fp8(c, kDecoder, 6), "-888--");
  EXPECT_EQ(layers_in_fp8(c, kCrossDecoder, 4), "-8--") << "of the decoder's four layers";
}

}  // namespace
}  // namespace megatron
