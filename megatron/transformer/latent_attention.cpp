#include "megatron/transformer/latent_attention.h"

#include <cmath>

#include "megatron/core/error.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/latent_attention.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/transformer/init.h"
#include "megatron/transformer/kv_cache.h"
#include "megatron/transformer/recomputed_region.h"
#include "megatron/transformer/rotary_frequencies.h"

namespace megatron {

LatentHeads latent_heads(const LayerConfig& config, int64_t tensor_parallel_size) {
  return {.num_heads = config.num_attention_heads / tensor_parallel_size,
          .unrotated = config.qk_head_dim,
          .rotated = config.qk_pos_emb_head_dim,
          .value = config.v_head_dim};
}

namespace {

// The scores' scale is of the keys' true size. It grows with the scaling of rotary frequencies.
// Compat: Megatron Core 0.19 applies mscale_all_dim with --rope-type rope, too.
LayerConfig with_latent_scale(LayerConfig config) {
  if (config.softmax_scale > 0) return config;
  const double mscale = yarn_mscale(config.rope_scaling.factor, config.rope_scaling.mscale_all_dim);
  config.softmax_scale =
      mscale * mscale / std::sqrt(static_cast<double>(latent_heads(config, 1).key()));
  return config;
}

}  // namespace

LatentAttention::LatentAttention(const LayerConfig& config, const LayerPlace& place,
                                 const TensorParallel& tp, Stream stream)
    : layer_(place.layer),
      tp_(tp),
      kv_lora_rank_(config.kv_lora_rank),
      heads_(latent_heads(config, tp.size())),
      core_attention_(with_latent_scale(config), RankHeads(config, tp), place.is_causal, tp,
                      place.name + ".self_attention.core_attention", stream),
      drops_heads_(config.recomputes("mla_up_proj")),
      rotates_(config.position_embedding_type == PositionEmbedding::kRope),
      linear_kv_down_proj_(config.hidden_size, config.kv_lora_rank + config.qk_pos_emb_head_dim,
                           input_init(config), placement_of(config, tp, stream), false),
      linear_kv_up_proj_(config.kv_lora_rank,
                         config.num_attention_heads * (config.qk_head_dim + config.v_head_dim), tp,
                         {.has_bias = false,
                          .init = input_init(config),
                          .lora = lora_of(config, "linear_kv_up_proj")},
                         placement_of(config, tp, stream)),
      linear_proj_(config.num_attention_heads * config.v_head_dim, config.hidden_size, tp,
                   {.has_bias = config.has_proj_bias(),
                    .init = output_init(config),
                    .lora = lora_of(config, "linear_proj")},
                   placement_of(config, tp, stream)),
      proj_adapter_dropout_(config, place.name + ".self_attention.linear_proj"),
      q_adapter_(config, place, config.q_lora_rank == 0 ? "linear_q_proj" : "linear_q_up_proj"),
      q_down_adapter_(config, place, "linear_q_down_proj"),
      kv_down_adapter_(config, place, "linear_kv_down_proj"),
      kv_up_adapter_(config, place, "linear_kv_up_proj") {
  add_child("core_attention", core_attention_);
  const auto placement = placement_of(config, tp, stream);
  const int64_t query_rows = config.num_attention_heads * latent_heads(config, 1).key();
  const auto options = [&](const char* layer) {
    return LinearOptions{
        .has_bias = false, .init = input_init(config), .lora = lora_of(config, layer)};
  };
  const auto [kind, norm_options] = norm_flags(config);
  if (config.q_lora_rank == 0) {
    linear_q_proj_.emplace(config.hidden_size, query_rows, tp, options("linear_q_proj"), placement);
    add_child("linear_q_proj", *linear_q_proj_);
  } else {
    linear_q_down_proj_.emplace(config.hidden_size, config.q_lora_rank, input_init(config),
                                placement, false);
    add_child("linear_q_down_proj", *linear_q_down_proj_);
    add_whole_adapter(q_down_adapter_, config, "linear_q_down_proj", config.hidden_size,
                      config.q_lora_rank, stream);
    if (config.qk_layernorm) {
      q_layernorm_.emplace(config.q_lora_rank, kind, norm_options, placement);
      add_child("q_layernorm", *q_layernorm_);
    }
    linear_q_up_proj_.emplace(config.q_lora_rank, query_rows, tp, options("linear_q_up_proj"),
                              placement);
    add_child("linear_q_up_proj", *linear_q_up_proj_);
  }
  add_child("linear_kv_down_proj", linear_kv_down_proj_);
  add_whole_adapter(kv_down_adapter_, config, "linear_kv_down_proj", config.hidden_size,
                    config.kv_lora_rank + config.qk_pos_emb_head_dim, stream);
  if (config.qk_layernorm) {
    kv_layernorm_.emplace(config.kv_lora_rank, kind, norm_options, placement);
    add_child("kv_layernorm", *kv_layernorm_);
  }
  add_child("linear_kv_up_proj", linear_kv_up_proj_);
  add_child("linear_proj", linear_proj_);
}

void LatentAttention::add_whole_adapter(Adapter& adapter, const LayerConfig& config,
                                        const char* layer, int64_t in, int64_t out, Stream stream) {
  const LoraOptions lora = lora_of(config, layer);
  if (lora.rank == 0) return;
  adapter.whole.emplace(in, out, 1, TensorParallel{}, lora, placement_of(config, tp_, stream));
  add_child(std::string(layer) + "." + kAdapter, *adapter.whole);
}

Variable LatentAttention::down(const Linear& linear, const Adapter& adapter, const Variable& x,
                               const ForwardContext& context) const {
  Variable y = linear.forward(x);
  if (!adapter.whole) return y;
  return add(y, adapter.whole->forward(x, adapter.dropout.of_columns(x, tp_, context)));
}

LatentAttention::Narrow LatentAttention::projected_down(const Variable& x,
                                                        const ForwardContext& context) const {
  auto [pair, key] =
      split_channels(down(linear_kv_down_proj_, kv_down_adapter_, x, context), kv_lora_rank_);
  if (kv_layernorm_) pair = kv_layernorm_->forward(pair);
  if (linear_q_proj_) return {x, pair, key};
  Variable query = down(*linear_q_down_proj_, q_down_adapter_, x, context);
  if (q_layernorm_) query = q_layernorm_->forward(query);
  return {query, pair, key};
}

Variable LatentAttention::queries(const Variable& latent, const ForwardContext& context) const {
  const ColumnParallelLinear& linear = linear_q_proj_ ? *linear_q_proj_ : *linear_q_up_proj_;
  return linear.forward(latent, q_adapter_.dropout.of_columns(latent, tp_, context));
}

Variable LatentAttention::projected(const Narrow& narrow, const ForwardContext& context) const {
  // Every rank's heads read the key, so its gradient is a sum over ranks.
  const Variable key = tp_.sequence_parallel ? gather_from_sequence_region(narrow.key, tp_)
                                             : copy_to_tensor_region(narrow.key, tp_);
  const Variable pairs = linear_kv_up_proj_.forward(
      narrow.pair, kv_up_adapter_.dropout.of_columns(narrow.pair, tp_, context));
  return join_latent_heads(queries(narrow.query, context), pairs, key, heads_,
                           rotates_ ? context.sequence.rotary_table : Tensor(),
                           {.position_ids = context.sequence.position_ids});
}

Variable LatentAttention::attended(const Variable& x, const ForwardContext& context) const {
  const Narrow narrow = projected_down(x, context);
  const Variable qkv = projected(narrow, context);
  Variable y = first_channels(core_attention_.self(qkv, context), heads_.num_heads, heads_.value);
  if (!drops_heads_) return y;
  drop_until_used(
      qkv,
      [this, query = narrow.query.data(), pair = narrow.pair.data(), key = narrow.key.data(),
       constants = constants_of(context)] {
        return projected({Variable(query), Variable(pair), Variable(key)}, constants).data();
      },
      *context.random);
  return y;
}

Variable LatentAttention::attended_in_cache(const Variable& x,
                                            const ForwardContext& context) const {
  invariant(!tp_.sequence_parallel, "generation does not divide sequences");
  CachedBatch& cached = *context.decode.cached;
  PagedStore& store = cached.cache.layer(layer_);
  const PagedBatch& batch = cached.rows;
  const PagedAttentionOptions options = core_attention_.paged_options(context);
  const Narrow narrow = projected_down(x, context);
  Tensor q = queries(narrow.query, context).data();
  Tensor key = narrow.key.data();
  rotate_latent_heads(q, key, heads_, rotates_ ? context.sequence.rotary_table : Tensor(),
                      {.position_ids = context.sequence.position_ids});
  put_latents(key, narrow.pair.data(), store, batch);
  Tensor y({x.size(0), 1, heads_.num_heads * heads_.value}, q.dtype(), q.stream());
  LatentUp up{linear_kv_up_proj_.weight().data(), linear_kv_up_proj_.weight_scales()};
  if (const ColumnParallelLora* const adapter = linear_kv_up_proj_.adapter()) {
    up.a = adapter->a().data();
    up.b = adapter->b().data();
    up.adapter_scale = adapter->scale();
  }
  attend_latents(y, q, up, store, batch, heads_, options);
  for (const PagedBatch::Prefill& prefill : batch.prefills) {
    const auto [keys, latents] = latents_of(prefill, store, q.dtype());
    attend_projected_latents(y, q, linear_kv_up_proj_.forward(Variable(latents)).data(), keys,
                             prefill, heads_, options);
  }
  return Variable(std::move(y));
}

BiasedOutput LatentAttention::forward(const Variable& x, const ForwardContext& context) const {
  const Variable y =
      context.decode.cached != nullptr ? attended_in_cache(x, context) : attended(x, context);
  return {linear_proj_.forward_without_bias(y, proj_adapter_dropout_.of_rows(y, context)),
          linear_proj_.bias()};
}

}  // namespace megatron
