#include "megatron/transformer/layer_recipe.h"

#include <utility>

#include "megatron/core/error.h"
#include "megatron/transformer/cross_attention.h"
#include "megatron/transformer/expert_mlp.h"
#include "megatron/transformer/init.h"
#include "megatron/transformer/latent_attention.h"
#include "megatron/transformer/mlp.h"
#include "megatron/transformer/self_attention.h"

namespace megatron {
namespace {

// FP8 may leave out the first and the last layers of a stack.
bool stays_in_16_bits(const TransformerConfig& config, const Stack& stack, int64_t layer) {
  const Fp8Config& fp8 = config.fp8;
  const bool is_decoder_of_two = stack.has_cross_attention && config.decoder_num_layers > 0;
  const int64_t count = is_decoder_of_two ? config.decoder_num_layers : config.num_layers;
  return fp8.first_last_layers_bf16 && (layer < fp8.num_layers_at_start_in_bf16 ||
                                        layer >= count - fp8.num_layers_at_end_in_bf16);
}

bool has_window(const TransformerConfig& config, int64_t layer) {
  const std::vector<int>& windows = config.window_layers;
  return windows.empty() || windows[static_cast<size_t>(layer)] != 0;
}

std::unique_ptr<LayerPart> make_part(const LayerRecipe& recipe, const BranchRecipe& branch,
                                     const TensorParallel& tp, Stream stream) {
  switch (branch.part) {
    case PartKind::kSelfAttention:
      return std::make_unique<SelfAttention>(recipe.config, recipe.place, tp, stream);
    case PartKind::kLatentAttention:
      return std::make_unique<LatentAttention>(recipe.config, recipe.place, tp, stream);
    case PartKind::kCrossAttention:
      return std::make_unique<CrossAttention>(recipe.config, recipe.place, tp, stream);
    case PartKind::kMlp:
      return std::make_unique<Mlp>(recipe.config, recipe.place.name + "." + branch.name, tp,
                                   stream);
    case PartKind::kExpertMlp:
      return std::make_unique<ExpertMlp>(recipe.config, recipe.place.name + "." + branch.name, tp,
                                         stream, recipe.place.layer);
  }
  throw InternalError("make_part: unknown part of a layer");
}

}  // namespace

LayerRecipe layer_recipe(const TransformerConfig& config, const Stack& stack, int64_t layer) {
  LayerRecipe recipe = {.config = config, .place = stack.place(layer), .branches = {}};
  if (stays_in_16_bits(config, stack, layer)) recipe.config.fp8.format = Fp8Format::kNone;
  if (!config.no_rope_layers.empty() && config.no_rope_layers[static_cast<size_t>(layer)] != 0) {
    recipe.config.position_embedding_type = PositionEmbedding::kNone;
  }
  if (!has_window(config, layer)) recipe.config.attention_window = 0;
  const auto add = [&](BranchRecipe branch) {
    branch.residual_is_normed = config.apply_residual_connection_post_layernorm;
    if (config.norm_placement == NormPlacement::kBefore) branch.post_norm.clear();
    if (config.norm_placement == NormPlacement::kAfter) branch.norm.clear();
    recipe.branches.push_back(std::move(branch));
  };
  add({config.multi_latent_attention ? PartKind::kLatentAttention : PartKind::kSelfAttention,
       "self_attention", "input_layernorm", "post_self_attn_layernorm"});
  if (stack.has_cross_attention) {
    if (config.parallel_residual) {
      throw ConfigError("a layer with parallel residuals has no place for cross-attention");
    }
    add({PartKind::kCrossAttention, "cross_attention", "pre_cross_attn_layernorm",
         "post_cross_attn_layernorm"});
  }
  BranchRecipe mlp = {config.has_experts(layer) ? PartKind::kExpertMlp : PartKind::kMlp, "mlp",
                      "pre_mlp_layernorm", "post_mlp_layernorm"};
  if (config.parallel_residual_shares_norm) {
    mlp.norm.clear();
    mlp.input = BranchInput::kFirstNorm;
  } else if (config.parallel_residual) {
    mlp.input = BranchInput::kLayerInput;
  }
  add(std::move(mlp));
  return recipe;
}

std::vector<ResidualBranch> make_branches(const LayerRecipe& recipe, const TensorParallel& tp,
                                          Stream stream) {
  std::vector<ResidualBranch> branches;
  const auto norm_if = [&](const std::string& name) {
    return name.empty() ? nullptr : make_norm(recipe.config, tp, stream);
  };
  for (const BranchRecipe& branch : recipe.branches) {
    branches.push_back(
        {.norm_name = branch.norm,
         .norm = norm_if(branch.norm),
         .name = branch.name,
         .part = make_part(recipe, branch, tp, stream),
         .post_norm_name = branch.post_norm,
         .post_norm = norm_if(branch.post_norm),
         .multiplier = static_cast<float>(recipe.config.residual_multiplier),
         .input = branch.input,
         .residual_is_normed = branch.residual_is_normed,
         .drops_normed = recipe.config.recomputes("layernorm") && !branch.norm.empty() &&
                         !branch.residual_is_normed,
         .dropout = static_cast<float>(recipe.config.hidden_dropout),
         .dropout_site = hash_of(recipe.place.name + "." + branch.name + ".dropout")});
  }
  return branches;
}

std::unique_ptr<TransformerLayer> make_layer(const LayerRecipe& recipe, const TensorParallel& tp,
                                             Stream stream) {
  return std::make_unique<TransformerLayer>(make_branches(recipe, tp, stream), tp);
}

}  // namespace megatron
