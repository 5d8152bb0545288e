#include "megatron/transformer/cross_attention.h"

#include "megatron/core/error.h"
#include "megatron/ops/dropout.h"
#include "megatron/transformer/init.h"

namespace megatron {

CrossAttention::CrossAttention(const LayerConfig& config, const LayerPlace& place,
                               const TensorParallel& tp, Stream stream)
    : layer_(place.layer),
      num_heads_(RankHeads(config, tp).num_heads),
      core_attention_(config, RankHeads(config, tp), false, tp,
                      place.name + ".cross_attention.core_attention", stream),
      linear_q_(config.hidden_size, config.num_attention_heads * config.kv_channels, tp,
                {.has_bias = config.has_proj_bias(), .init = input_init(config), .fp8 = config.fp8},
                placement_of(config, tp, stream)),
      linear_kv_(
          config.hidden_size, 2 * config.num_attention_heads * config.kv_channels, tp,
          {.has_bias = config.has_proj_bias(), .init = input_init(config), .fp8 = config.fp8},
          placement_of(config, tp, stream)),
      linear_proj_(
          config.num_attention_heads * config.kv_channels, config.hidden_size, tp,
          {.has_bias = config.has_proj_bias(), .init = output_init(config), .fp8 = config.fp8},
          placement_of(config, tp, stream)) {
  if (config.num_query_groups != config.num_attention_heads) {
    throw ConfigError(
        "--group-query-attention does not work with cross-attention, whose heads have keys and "
        "values of their own; remove it");
  }
  add_child("linear_q", linear_q_);
  add_child("linear_kv", linear_kv_);
  add_child("linear_proj", linear_proj_);
}

BiasedOutput CrossAttention::forward(const Variable& x, const ForwardContext& context) const {
  const Variable q = linear_q_.forward(x);  // [s, b, n d]
  if (context.decode.cached != nullptr) {
    const Variable y = core_attention_.cross_cached(q, layer_, *context.decode.cached);
    return {linear_proj_.forward_without_bias(y), linear_proj_.bias()};
  }
  const Variable kv = linear_kv_.forward(context.encoder.output);  // [se, b, n 2 d]
  const Variable y = core_attention_.cross(q, kv, context);        // [s, b, n d]
  return {linear_proj_.forward_without_bias(y), linear_proj_.bias()};
}

Variable CrossAttention::forward(const Variable& x, const ForwardContext& context,
                                 const DropoutKey& key) const {
  const BiasedOutput branch = forward(x, context);
  if (!branch.bias.defined() && !key.is_active()) return branch.y;
  return bias_dropout_add(branch.y, branch.bias, Variable(), key);
}

void CrossAttention::keep(const Variable& output, KvCache& cache, const Tensor& slots) const {
  put_into_pages(linear_kv_.forward(output).data(), num_heads_, cache.layer(layer_), slots);
}

}  // namespace megatron
