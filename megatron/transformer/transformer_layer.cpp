#include "megatron/transformer/transformer_layer.h"

#include <fmt/format.h>

#include "megatron/parallel/context/sequence.h"
#include "megatron/transformer/init.h"

namespace megatron {

NormFlags norm_flags(const TransformerConfig& config) {
  return {config.normalization == Normalization::kRmsNorm ? Norm::Kind::kRmsNorm
                                                          : Norm::Kind::kLayerNorm,
          {.epsilon = static_cast<float>(config.norm_epsilon),
           .one_plus_weight = config.apply_layernorm_1p}};
}

TransformerLayer::TransformerLayer(const TransformerConfig& config, int64_t layer,
                                   const TensorParallel& tp, Stream stream)
    : tp_(tp),
      parallel_residual_(config.parallel_residual),
      residual_is_normed_(config.apply_residual_connection_post_layernorm),
      hidden_dropout_(static_cast<float>(config.hidden_dropout)),
      attention_site_(hash_of(fmt::format("decoder.layers.{}.self_attention.dropout", layer))),
      mlp_site_(hash_of(fmt::format("decoder.layers.{}.mlp.dropout", layer))),
      input_layernorm_(config.hidden_size, norm_flags(config).kind, norm_flags(config).options,
                       placement_of(config, tp, stream)),
      self_attention_(config, layer, tp, stream),
      pre_mlp_layernorm_(config.hidden_size, norm_flags(config).kind, norm_flags(config).options,
                         placement_of(config, tp, stream)),
      mlp_(config, tp, stream) {
  add_child("input_layernorm", input_layernorm_);
  add_child("self_attention", self_attention_);
  add_child("pre_mlp_layernorm", pre_mlp_layernorm_);
  add_child("mlp", mlp_);
}

ResidualSum TransformerLayer::forward(const ResidualSum& x, const ForwardContext& context) const {
  const auto [stream, normed] = input_layernorm_.forward(x);
  const auto sum = [&](const Variable& branch, const Variable& bias, const Variable& residual,
                       uint64_t site) -> ResidualSum {
    return {branch, bias, residual,
            of_rows(context.random->dropout_key(site, hidden_dropout_), residual.size(0), tp_,
                    context.context_parallel)};
  };

  const Variable a = self_attention_.forward_without_bias(normed, context);
  const ResidualSum x1 =
      sum(a, self_attention_.bias(), residual_is_normed_ ? normed : stream, attention_site_);
  const auto [stream1, normed1] =
      parallel_residual_ ? NormedStream{computed(x1), pre_mlp_layernorm_.forward(stream)}
                         : pre_mlp_layernorm_.forward(x1);

  const Variable z = mlp_.forward_without_bias(normed1);
  return sum(z, mlp_.bias(), residual_is_normed_ ? normed1 : stream1, mlp_site_);
}

}  // namespace megatron
