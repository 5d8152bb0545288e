#include "megatron/transformer/mlp.h"

#include "megatron/ops/bias_activation.h"
#include "megatron/parallel/tensor/fp8_linear.h"
#include "megatron/parallel/tensor/gelu_mlp.h"
#include "megatron/transformer/init.h"
#include "megatron/transformer/recomputed_region.h"

namespace megatron {

Mlp::Mlp(const LayerConfig& config, const std::string& name, const TensorParallel& tp,
         Stream stream)
    : tp_(tp),
      activation_(config.activation),
      is_recomputed_(config.recomputes("mlp")),
      drops_activation_(config.recomputes("activation") && !is_recomputed_),
      may_split_k_(config.norm_placement == NormPlacement::kBefore),
      linear_fc1_(config.hidden_size,
                  config.is_gated() ? 2 * config.ffn_hidden_size : config.ffn_hidden_size, tp,
                  {.has_bias = config.add_bias_linear,
                   .init = input_init(config),
                   .stacked_parts = config.is_gated() ? 2 : 1,
                   .fp8 = config.fp8,
                   .lora = lora_of(config, "linear_fc1")},
                  placement_of(config, tp, stream)),
      linear_fc2_(config.ffn_hidden_size, config.hidden_size, tp,
                  {.has_bias = config.add_bias_linear,
                   .init = output_init(config),
                   .fp8 = config.fp8,
                   .lora = lora_of(config, "linear_fc2")},
                  placement_of(config, tp, stream)),
      fc1_adapter_dropout_(config, name + ".linear_fc1"),
      fc2_adapter_dropout_(config, name + ".linear_fc2") {
  add_child("linear_fc1", linear_fc1_);
  add_child("linear_fc2", linear_fc2_);
}

BiasedOutput Mlp::forward(const Variable& x, const ForwardContext& context) const {
  if (!is_recomputed_) return {product(x, context), linear_fc2_.bias()};
  const auto region = [this](const Variable& in, const ForwardContext& inside) {
    return product(in, inside);
  };
  return {recompute_region(region, x, context), linear_fc2_.bias()};
}

Variable Mlp::product(const Variable& x, const ForwardContext& context) const {
  const Fp8Layer* const fp8 = linear_fc1_.fp8();
  const bool has_adapter = linear_fc1_.has_adapter() || linear_fc2_.has_adapter();
  if (fp8 != nullptr && fp8->has_fp8_wgrad() && !has_adapter) {
    return fp8_mlp(x, {*fp8, linear_fc1_.weight(), linear_fc1_.bias()}, activation_,
                   {*linear_fc2_.fp8(), linear_fc2_.weight()}, tp_);
  }
  const bool is_rounded = linear_fc1_.has_rounded_weight();
  const bool may_split_k = context.decode.cached != nullptr && may_split_k_;  // few rows
  if (fp8 == nullptr && !has_adapter && !is_rounded && activation_ == Activation::kGeluTanh) {
    return gelu_mlp(x, linear_fc1_.weight(), linear_fc1_.bias(), linear_fc2_.weight(), tp_,
                    {.may_split_k = may_split_k, .drops_value = drops_activation_});
  }
  const Variable wide = linear_fc1_.forward_without_bias(
      x, fc1_adapter_dropout_.of_columns(x, tp_, context));  // [s, b, f/tp or 2f/tp]
  const Variable y = bias_activation(wide, linear_fc1_.bias(), activation_);  // [s, b, f/tp]
  Variable z =
      linear_fc2_.forward_without_bias(y, fc2_adapter_dropout_.of_rows(y, context), may_split_k);
  if (drops_activation_) {
    drop_until_used(
        y,
        [this, in = wide.data()] {
          return bias_activation(Variable(in), linear_fc1_.bias(), activation_).data();
        },
        *context.random);
  }
  return z;
}

}  // namespace megatron
