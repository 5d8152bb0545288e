#include "megatron/transformer/head_norm.h"

#include "megatron/ops/elementwise.h"
#include "megatron/parallel/tensor/mappings.h"
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
  if (config.qk_layernorm_weight_per_head) {
    info.sharding = tp.sharding(0);
    const Placement placement = {config.params_dtype, stream};
    weight_ = add_parameter("weight", {heads / tp.size(), d}, info, placement);
    if (only_describes()) return;
    ones_ = Variable(full({d}, 1, config.params_dtype, stream));
    if (!is_rms_norm_) zeros_ = Variable(zeros({d}, config.params_dtype, stream));
    return;
  }
  // Every rank norms the whole projection, but only its own heads.
  const Placement placement = {config.params_dtype, stream, !is_of_projection_ && tp.size() > 1};
  const Shape shape = {is_of_projection_ ? heads * d : d};
  weight_ = add_parameter("weight", shape, info, placement);
  if (!is_rms_norm_) {
    bias_ = add_parameter("bias", shape, {.role = ParameterRole::kNorm}, placement);
  }
}

Variable HeadNorm::normed(const Variable& x, const Variable& weight, const Variable& bias) const {
  return is_rms_norm_ ? rms_norm(x, weight, options_) : layer_norm(x, weight, bias, options_);
}

Variable HeadNorm::forward(const Variable& heads) const {
  const Shape& shape = heads.shape();
  const Shape flat = {shape[0], shape[1], shape[2] * shape[3]};
  if (is_of_projection_) {
    const Variable all = gather_from_tensor_region(reshape(heads, flat), tp_);
    return reshape(scatter_to_tensor_region(normed(all, weight_, bias_), tp_), shape);
  }
  if (!ones_.defined()) return normed(heads, weight_, bias_);
  const Variable plain = reshape(normed(heads, ones_, zeros_), flat);
  return reshape(scale_columns(plain, reshape(weight_, {weight_.data().numel()})), shape);
}

}  // namespace megatron
