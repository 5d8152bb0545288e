#include "megatron/transformer/head_norm.h"

#include "megatron/ops/elementwise.h"
#include "megatron/parallel/tensor/spread_norm.h"
#include "megatron/transformer/init.h"

namespace megatron {

HeadNorm::HeadNorm(const LayerConfig& config, int64_t heads, const TensorParallel& tp,
                   Stream stream)
    : is_rms_norm_(config.normalization == Normalization::kRmsNorm),
      options_(norm_flags(config).options),
      tp_(tp),
      is_of_projection_(config.qk_layernorm_of_projection) {
  const int64_t d = config.kv_channels;
  ParameterInfo info = {.role = ParameterRole::kNorm,
                        .init = options_.one_plus_weight ? Init::zeros() : Init::ones()};
  // Ranks have the weights of their own heads, or parts of the gradient of a weight of all heads.
  Placement placement = {config.params_dtype, stream};
  Shape shape = {d};
  if (is_of_projection_) {
    shape = {heads / tp.size() * d};
    info.sharding = tp.sharding(0);
  } else if (config.qk_layernorm_weight_per_head) {
    shape = {heads / tp.size(), d};
    info.sharding = tp.sharding(0);
  } else {
    placement.has_partial_gradients = tp.size() > 1;
  }
  weight_ = add_parameter("weight", shape, info, placement);
  if (!config.qk_layernorm_weight_per_head) {
    if (!is_rms_norm_) {
      bias_ = add_parameter("bias", shape, {.role = ParameterRole::kNorm}, placement);
    }
  } else if (!only_describes()) {
    ones_ = Variable(full({d}, 1, config.params_dtype, stream));
    zeros_ = Variable(zeros({d}, config.params_dtype, stream));
  }
}

Variable HeadNorm::normed(const Variable& x, const Variable& weight, const Variable& bias) const {
  return is_rms_norm_ ? rms_norm(x, weight, options_) : layer_norm(x, weight, bias, options_);
}

std::optional<kernels::HeadNorms> HeadNorm::of_each_head(const HeadNorm& q, const HeadNorm& k) {
  if (q.is_of_projection_ || q.ones_.defined()) return std::nullopt;
  const auto view = [](const Variable& one) {
    return one.defined() ? ConstView(one.data().view()) : ConstView{};
  };
  return kernels::HeadNorms{.q_weight = view(q.weight_),
                            .q_bias = view(q.bias_),
                            .k_weight = view(k.weight_),
                            .k_bias = view(k.bias_),
                            .weight_offset = q.options_.one_plus_weight ? 1.0f : 0.0f,
                            .epsilon = q.options_.epsilon};
}

Variable HeadNorm::forward(const Variable& heads) const {
  const Shape& shape = heads.shape();
  const Shape flat = {shape[0], shape[1], shape[2] * shape[3]};
  if (is_of_projection_) {
    return reshape(spread_rms_norm(reshape(heads, flat), weight_, options_, tp_), shape);
  }
  if (!ones_.defined()) return normed(heads, weight_, bias_);
  const Variable plain = reshape(normed(heads, ones_, zeros_), flat);
  return reshape(scale_columns(plain, reshape(weight_, {weight_.data().numel()})), shape);
}

}  // namespace megatron
