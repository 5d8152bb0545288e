#include "megatron/transformer/transformer_layer.h"

#include "megatron/core/error.h"
#include "megatron/parallel/context/sequence.h"
#include "megatron/transformer/init.h"

namespace megatron {

TransformerLayer::TransformerLayer(const TransformerConfig& config, const Stack& stack,
                                   int64_t layer, const TensorParallel& tp, Stream stream)
    : tp_(tp),
      parallel_residual_(config.parallel_residual),
      residual_is_normed_(config.apply_residual_connection_post_layernorm),
      cross_residual_is_normed_(
          residual_is_normed_ ||
          (stack.reads_chunks && config.retro.encoder_residual == RetroResidual::kPost)),
      hidden_dropout_(static_cast<float>(config.hidden_dropout)),
      self_attention_site_(hash_of(stack.layer_name(layer) + ".self_attention.dropout")),
      cross_attention_site_(hash_of(stack.layer_name(layer) + ".cross_attention.dropout")),
      mlp_site_(hash_of(stack.layer_name(layer) + ".mlp.dropout")),
      input_layernorm_(config.hidden_size, norm_flags(config).kind, norm_flags(config).options,
                       placement_of(config, tp, stream)),
      self_attention_(config, stack, layer, tp, stream),
      pre_mlp_layernorm_(config.hidden_size, norm_flags(config).kind, norm_flags(config).options,
                         placement_of(config, tp, stream)),
      mlp_(config, stack.layer_name(layer) + ".mlp", tp, stream) {
  add_child("input_layernorm", input_layernorm_);
  add_child("self_attention", self_attention_);
  const bool reads_neighbors = stack.has_neighbors(config.retro, layer);
  const bool reads_chunk = stack.reads_chunks && layer == 0;
  if (stack.has_cross_attention || reads_neighbors || reads_chunk) {
    if (parallel_residual_) {
      throw ConfigError("a layer with parallel residuals has no place for cross-attention");
    }
    pre_cross_attn_layernorm_.emplace(config.hidden_size, norm_flags(config).kind,
                                      norm_flags(config).options, placement_of(config, tp, stream));
    add_child("pre_cross_attn_layernorm", *pre_cross_attn_layernorm_);
    if (reads_neighbors) {
      neighbor_attention_.emplace(config, stack, layer, tp, stream);
      add_child("cross_attention", *neighbor_attention_);
    } else {
      cross_attention_.emplace(config, stack, layer, tp, stream);
      // Compat: Megatron Core's names.
      add_child(reads_chunk ? "cross_attention.attn" : "cross_attention", *cross_attention_);
    }
  }
  add_child("pre_mlp_layernorm", pre_mlp_layernorm_);
  add_child("mlp", mlp_);
}

ResidualSum TransformerLayer::sum(const BiasedOutput& branch, const Variable& residual,
                                  uint64_t dropout_site, const ForwardContext& context) const {
  return {branch.y, branch.bias, residual,
          of_rows(context.random->dropout_key(dropout_site, hidden_dropout_), residual.size(0), tp_,
                  context.context_parallel)};
}

ResidualSum TransformerLayer::forward(const ResidualSum& x, const ForwardContext& context) const {
  const auto residual = [this](const NormedStream& at) -> const Variable& {
    return residual_is_normed_ ? at.y : at.x;
  };
  const NormedStream start = input_layernorm_.forward(x);
  ResidualSum x1 = sum(self_attention_.forward(start.y, context), residual(start),
                       self_attention_site_, context);
  if (cross_attention_) {
    const NormedStream before_cross = pre_cross_attn_layernorm_->forward(x1);
    x1 = sum(cross_attention_->forward(before_cross.y, context),
             cross_residual_is_normed_ ? before_cross.y : before_cross.x, cross_attention_site_,
             context);
  } else if (neighbor_attention_ && context.neighbors != nullptr) {
    const NormedStream before_cross = pre_cross_attn_layernorm_->forward(x1);
    x1 = {.branch = neighbor_attention_->forward(before_cross.y, context),
          .residual = residual(before_cross)};
  }
  const NormedStream before_mlp =
      parallel_residual_ ? NormedStream{computed(x1), pre_mlp_layernorm_.forward(start.x)}
                         : pre_mlp_layernorm_.forward(x1);
  return sum(mlp_.forward(before_mlp.y, context), residual(before_mlp), mlp_site_, context);
}

}  // namespace megatron
