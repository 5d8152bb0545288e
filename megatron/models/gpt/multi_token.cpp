#include "megatron/models/gpt/multi_token.h"

#include <string>
#include <utility>

#include "megatron/models/model.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/latent_heads.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/init.h"
#include "megatron/transformer/recomputed_region.h"

namespace megatron {
namespace {

// The recipe of the depth whose parameters are mtp.layers.<layer>.
LayerRecipe recipe_of_depth(const TransformerConfig& config, const Stack& stack, int64_t layer) {
  LayerRecipe recipe = layer_recipe(config, stack, config.num_layers - 1);
  recipe.place.name = "mtp.layers." + std::to_string(layer) + ".mtp_model_layer";
  recipe.place.layer = layer_of_depth(config, layer + 1);
  return recipe;
}

}  // namespace

int64_t layer_of_depth(const TransformerConfig& config, int64_t k) {
  return config.num_layers + (config.mtp_use_repeated_layer ? 0 : k - 1);
}

MultiTokenPrediction::Depth::Depth(const TransformerConfig& config, const LayerRecipe& recipe,
                                   const TensorParallel& the_tp, Stream stream,
                                   const LayerMaker& make)
    : tp(the_tp),
      is_recomputed(config.recompute_granularity == RecomputeGranularity::kFull),
      stream_dtype(residual_dtype(config)),
      enorm(make_norm(config, tp, stream)),
      hnorm(make_norm(config, tp, stream)),
      eh_proj(2 * config.hidden_size, config.hidden_size, tp,
              {.has_bias = false, .init = input_init(config)}, placement_of(config, tp, stream)),
      mtp_model_layer(make(recipe, tp, stream)),
      final_layernorm(make_norm(config, tp, stream)) {
  add_child("enorm", *enorm);
  add_child("hnorm", *hnorm);
  add_child("eh_proj", eh_proj);
  add_child("mtp_model_layer", *mtp_model_layer);
  add_child("final_layernorm", *final_layernorm);
}

Variable MultiTokenPrediction::Depth::forward(const Variable& hidden, const Variable& embedded,
                                              const ForwardContext& context) const {
  const Variable both = join_channels(enorm->forward(embedded), hnorm->forward(hidden));
  Variable x = gather_from_tensor_region(eh_proj.forward(both), tp);
  if (tp.sequence_parallel) x = scatter_to_sequence_region(x, tp);
  x = cast(x, stream_dtype);
  const auto layer = [this](const Variable& in, const ForwardContext& inside) {
    return computed(mtp_model_layer->forward({.residual = in}, inside));
  };
  const ResidualSum y = is_recomputed && grad_enabled()
                            ? ResidualSum{.residual = recompute_region(layer, x, context)}
                            : mtp_model_layer->forward({.residual = x}, context);
  return final_layernorm->forward(y).y;
}

MultiTokenPrediction::MultiTokenPrediction(const TransformerConfig& config, const Stack& stack,
                                           const TensorParallel& tp, Stream stream,
                                           const LayerMaker& make)
    : num_depths_(config.mtp_num_layers), is_detached_(config.mtp_detach_heads) {
  const int64_t count = config.mtp_use_repeated_layer ? 1 : num_depths_;
  for (int64_t i = 0; i < count; ++i) {
    layers_.push_back(
        std::make_unique<Depth>(config, recipe_of_depth(config, stack, i), tp, stream, make));
    add_child("layers." + std::to_string(i), *layers_.back());
  }
}

Activations MultiTokenPrediction::forward(const Variable& hidden,
                                          const std::function<Variable(int64_t k)>& embedded,
                                          const ForwardContext& context) const {
  Activations states;
  Variable state = is_detached_ ? hidden.detached() : hidden;
  for (int64_t k = 1; k <= num_depths_; ++k) {
    const Variable tokens = embedded(k);
    state = forward_depth(k, state, is_detached_ ? tokens.detached() : tokens, context);
    states.push_back(state);
  }
  return states;
}

Variable MultiTokenPrediction::forward_depth(int64_t k, const Variable& states,
                                             const Variable& embedded,
                                             const ForwardContext& context) const {
  const Depth& depth = *layers_[layers_.size() == 1 ? 0 : static_cast<size_t>(k - 1)];
  return depth.forward(states, embedded, context);
}

}  // namespace megatron
