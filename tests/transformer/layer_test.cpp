#include "megatron/transformer/layer_recipe.h"

#include "megatron/core/error.h"
#include "megatron/ops/dropout.h"
#include "megatron/ops/elementwise.h"
#include "tests/ops/op_case.h"
#include "tests/transformer/tiny_stack.h"

namespace megatron {
namespace {

TransformerConfig small_layer() {
  TransformerConfig c = tiny_config();
  c.hidden_size = 8;
  c.num_attention_heads = 2;
  c.num_query_groups = 2;
  c.kv_channels = 4;
  c.ffn_hidden_size = 12;
  return c;
}

std::unique_ptr<TransformerLayer> layer_of(const TransformerConfig& config, const Stack& stack,
                                           int64_t layer) {
  return make_layer(layer_recipe(config, stack, layer), {}, Stream{});
}

// Central differences through a whole layer. Inputs: x, then what the context gets.
OpCase layer_case(const TransformerLayer& layer, std::vector<Tensor> inputs,
                  void (*fill)(ForwardContext& context, const std::vector<Variable>& in)) {
  return {.name = "layer",
          .inputs = std::move(inputs),
          .op =
              [&layer, fill](const std::vector<Variable>& in) {
                RandomState random(1);
                ForwardContext context;
                context.random = &random;
                fill(context, in);
                return computed(layer.forward({.residual = in[0]}, context));
              },
          .terms = 256,
          .dtypes = {},
          .step = 0x1p-7,
          .gradient_tolerance = 2e-3};
}

void check_layer(const TransformerConfig& config, const Stack& stack, std::vector<Tensor> inputs,
                 void (*fill)(ForwardContext& context, const std::vector<Variable>& in)) {
  const auto layer = layer_of(config, stack, 1);
  initialize(*layer, 3);
  check(layer_case(*layer, std::move(inputs), fill));
}

TEST(TransformerLayerTest, DecoderHasTheRightGradients) {
  check_layer(small_layer(), kDecoder, {random_hidden(5, 8, 1)},
              [](ForwardContext&, const std::vector<Variable>&) {});
}

TEST(TransformerLayerTest, NormedQueriesAndKeysHaveTheRightGradients) {
  for (const Normalization normalization : {Normalization::kLayerNorm, Normalization::kRmsNorm}) {
    TransformerConfig c = small_layer();
    c.qk_layernorm = true;
    c.normalization = normalization;
    c.num_query_groups = 1;
    check_layer(c, kDecoder, {random_hidden(5, 8, 1)},
                [](ForwardContext&, const std::vector<Variable>&) {});
  }
}

// Changes of a decoder's layer.
const std::vector<std::pair<const char*, void (*)(TransformerConfig&)>> kOptions = {
    {"olmo2",
     [](TransformerConfig& c) {
       c.norm_placement = NormPlacement::kAfter;
       c.normalization = Normalization::kRmsNorm;
       c.qk_layernorm = c.qk_layernorm_of_projection = true;
     }},
    {"gemma2",
     [](TransformerConfig& c) {
       c.norm_placement = NormPlacement::kBoth;
       c.normalization = Normalization::kRmsNorm;
       c.apply_layernorm_1p = true;
       c.activation = Activation::kGegluTanhFirst;
     }},
    {"gptj",
     [](TransformerConfig& c) {
       c.parallel_residual = c.parallel_residual_shares_norm = true;
       c.add_attention_bias = false;
     }},
    {"cohere",
     [](TransformerConfig& c) {
       c.parallel_residual = c.parallel_residual_shares_norm = true;
       c.add_norm_bias = c.add_bias_linear = false;
       c.qk_layernorm = c.qk_layernorm_weight_per_head = true;
     }},
    {"granite", [](TransformerConfig& c) { c.residual_multiplier = 0.25; }},
};

TEST(TransformerLayerTest, OptionsHaveTheRightGradients) {
  for (const auto& [name, change] : kOptions) {
    SCOPED_TRACE(name);
    TransformerConfig c = small_layer();
    change(c);
    check_layer(c, kDecoder, {random_hidden(5, 8, 1)},
                [](ForwardContext&, const std::vector<Variable>&) {});
  }
}

// A part of a layer that doubles, and adds a bias of 1.
class Doubled final : public LayerPart {
 public:
  BiasedOutput forward(const Variable& x, const ForwardContext&) const override {
    return {scale(x, 2), Variable(full({x.size(-1)}, 1, DType::kFloat32, Stream{}))};
  }
};

ResidualBranch doubled_branch(const char* name, bool has_norm, bool has_post_norm) {
  const auto norm_if = [](bool has_it) {
    return has_it ? std::make_unique<Norm>(8, Norm::Kind::kRmsNorm, NormOptions{}, Placement{})
                  : nullptr;
  };
  return {.norm_name = std::string(name) + "_norm",
          .norm = norm_if(has_norm),
          .name = name,
          .part = std::make_unique<Doubled>(),
          .post_norm_name = std::string(name) + "_post_norm",
          .post_norm = norm_if(has_post_norm)};
}

// The layer of these branches, and its sum in plain operations.
Tensor layer_output(std::vector<ResidualBranch> branches, const Variable& x) {
  const TransformerLayer layer(std::move(branches), {});
  initialize(layer, 1);
  RandomState random(1);
  ForwardContext context;
  context.random = &random;
  return computed(layer.forward({.residual = x}, context)).data();
}

TEST(TransformerLayerTest, BranchesAddUpAsTheirRecipeSays) {
  const Variable x(random_hidden(3, 8, 1));
  const Variable ones(full({8}, 1, DType::kFloat32, Stream{}));
  const auto norm = [&](const Variable& v) { return rms_norm(v, ones, {}); };
  const auto part = [&](const Variable& v) {
    return bias_dropout_add(scale(v, 2), ones, Variable(), {});
  };

  std::vector<ResidualBranch> after;
  after.push_back(doubled_branch("a", false, true));
  after.push_back(doubled_branch("b", false, true));
  after.back().multiplier = 0.5f;
  const Variable x1 = add(x, norm(part(x)));
  const Variable want_after = add(x1, scale(norm(part(x1)), 0.5f));
  expect_close(layer_output(std::move(after), x), want_after.data(), Tolerance{1e-6, 1e-6},
               "after");

  std::vector<ResidualBranch> both;
  both.push_back(doubled_branch("a", true, true));
  const Variable want_both = add(x, norm(part(norm(x))));
  expect_close(layer_output(std::move(both), x), want_both.data(), Tolerance{1e-6, 1e-6}, "both");

  std::vector<ResidualBranch> shared;
  shared.push_back(doubled_branch("a", true, false));
  shared.push_back(doubled_branch("b", false, false));
  shared.back().input = BranchInput::kFirstNorm;
  shared.back().multiplier = 3;
  const Variable want_shared = add(add(x, part(norm(x))), scale(part(norm(x)), 3));
  expect_close(layer_output(std::move(shared), x), want_shared.data(), Tolerance{1e-6, 1e-6},
               "shared");
}

TEST(TransformerLayerTest, EncoderWithPaddingAndRelativeBiasHasTheRightGradients) {
  check_layer(small_layer(), kEncoder, {random_hidden(5, 8, 1), random_normal({2, 9}, {.seed = 2})},
              [](ForwardContext& context, const std::vector<Variable>& in) {
                context.sequence.key_padding_mask = padding_mask({5, 3}, 5);
                context.sequence.relative_bias = in[1];
              });
}

TEST(TransformerLayerTest, CrossAttentionHasTheRightGradients) {
  TransformerConfig c = small_layer();
  c.hidden_dropout = c.attention_dropout = 0.2;
  for (const bool residual_is_normed : {false, true}) {
    c.apply_residual_connection_post_layernorm = residual_is_normed;
    check_layer(c, kCrossDecoder, {random_hidden(4, 8, 1), random_hidden(6, 8, 2)},
                [](ForwardContext& context, const std::vector<Variable>& in) {
                  context.encoder.output = in[1];
                  context.encoder.padding_mask = padding_mask({6, 2}, 6);
                });
  }
}

std::vector<std::string> names_of(const Module& module) {
  std::vector<std::string> names;
  for (const Parameter& parameter : named_parameters(module)) names.push_back(parameter.name);
  return names;
}

TEST(TransformerLayerTest, PartsHaveMegatronCoresNames) {
  TransformerConfig c = small_layer();
  c.add_bias_linear = false;
  c.normalization = Normalization::kRmsNorm;
  c.qk_layernorm = true;
  EXPECT_EQ(names_of(*layer_of(c, kCrossDecoder, 0)),
            (std::vector<std::string>{
                "input_layernorm.weight", "self_attention.linear_qkv.weight",
                "self_attention.linear_proj.weight", "self_attention.q_layernorm.weight",
                "self_attention.k_layernorm.weight", "pre_cross_attn_layernorm.weight",
                "cross_attention.linear_q.weight", "cross_attention.linear_kv.weight",
                "cross_attention.linear_proj.weight", "pre_mlp_layernorm.weight",
                "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"}));
}

TEST(TransformerLayerTest, OptionsHaveTheirParameters) {
  TransformerConfig c = small_layer();
  c.norm_placement = NormPlacement::kBoth;
  c.add_norm_bias = false;
  c.add_attention_bias = false;
  c.add_qkv_bias = true;
  EXPECT_EQ(names_of(*layer_of(c, kDecoder, 0)),
            (std::vector<std::string>{
                "input_layernorm.weight", "self_attention.linear_qkv.weight",
                "self_attention.linear_qkv.bias", "self_attention.linear_proj.weight",
                "post_self_attn_layernorm.weight", "pre_mlp_layernorm.weight",
                "mlp.linear_fc1.weight", "mlp.linear_fc1.bias", "mlp.linear_fc2.weight",
                "mlp.linear_fc2.bias", "post_mlp_layernorm.weight"}));
}

TEST(TransformerLayerTest, CrossAttentionRefusesWhatItCannotDo) {
  TransformerConfig c = small_layer();
  c.num_query_groups = 1;
  EXPECT_EQ(message_of<ConfigError>([&] { layer_of(c, kCrossDecoder, 0); }),
            "--group-query-attention does not work with cross-attention, whose heads have keys and "
            "values of their own; remove it");
  c = small_layer();
  c.parallel_residual = true;
  EXPECT_EQ(message_of<ConfigError>([&] { layer_of(c, kCrossDecoder, 0); }),
            "a layer with parallel residuals has no place for cross-attention");
}

}  // namespace
}  // namespace megatron
