#include "megatron/transformer/cross_attention.h"

#include "megatron/core/error.h"
#include "megatron/transformer/init.h"
#include "megatron/transformer/kv_cache.h"

namespace megatron {

CrossAttention::CrossAttention(const TransformerConfig& config, const Stack& stack, int64_t layer,
                               const TensorParallel& tp, Stream stream)
    : layer_(layer),
      core_attention_(config, RankHeads(config, tp), false,
                      stack.layer_name(layer) + ".cross_attention.core_attention", stream),
      linear_q_(config.hidden_size, config.num_attention_heads * config.kv_channels, tp,
                {.has_bias = config.add_bias_linear, .init = input_init(config), .fp8 = config.fp8},
                placement_of(config, tp, stream)),
      linear_kv_(
          config.hidden_size, 2 * config.num_attention_heads * config.kv_channels, tp,
          {.has_bias = config.add_bias_linear, .init = input_init(config), .fp8 = config.fp8},
          placement_of(config, tp, stream)),
      linear_proj_(
          config.num_attention_heads * config.kv_channels, config.hidden_size, tp,
          {.has_bias = config.add_bias_linear, .init = output_init(config), .fp8 = config.fp8},
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

Branch CrossAttention::forward(const Variable& x, const ForwardContext& context) const {
  const Variable q = linear_q_.forward(x);  // [s, b, n d]
  if (context.cached != nullptr) {
    return {linear_proj_.forward_without_bias(cached(q, *context.cached)), linear_proj_.bias()};
  }
  const Variable kv = linear_kv_.forward(context.encoder_output);  // [se, b, n 2 d]
  const Variable y = core_attention_.cross(q, kv, context);        // [s, b, n d]
  return {linear_proj_.forward_without_bias(y), linear_proj_.bias()};
}

Variable CrossAttention::cached(const Variable& q, const CachedBatch& batch) const {
  const std::vector<EncoderMemory*>& memories = batch.memories;
  const auto kv_of = [this](const Variable& output) { return linear_kv_.forward(output).data(); };
  Tensor y = empty_like(q.data());
  for (size_t begin = 0, end = 0; begin < memories.size(); begin = end) {
    while (end < memories.size() && memories[end] == memories[begin]) ++end;
    const auto first = static_cast<int64_t>(begin);
    const auto count = static_cast<int64_t>(end - begin);
    Tensor part = y.slice(first, count);
    core_attention_.cross_cached(part, q.data().slice(first, count),
                                 memories[begin]->of_layer(layer_, kv_of));
  }
  return Variable(y);
}

}  // namespace megatron
