#include "megatron/transformer/kv_cache.h"

#include <fmt/format.h>

#include <utility>

#include "megatron/core/error.h"
#include "megatron/kernels/latent_attention.h"
#include "megatron/ops/latent_attention.h"
#include "megatron/transformer/latent_attention.h"

namespace megatron {
namespace {

constexpr int64_t kBytesOfScale = sizeof(float);

// The keys and values of a token in a layer, on one rank.
struct CachedHeads {
  int64_t groups, key, value;  // heads, channels of a key, of a value or a latent

  CachedHeads(const TransformerConfig& config, int64_t tensor_parallel_size) {
    if (config.multi_latent_attention) {
      groups = 1;
      key = config.qk_pos_emb_head_dim;
      value = config.kv_lora_rank;
    } else {
      groups = config.query_groups_of_rank(tensor_parallel_size);
      key = value = config.kv_channels;
    }
  }
};

}  // namespace

const char* name_of(KvCacheType type) { return type == KvCacheType::kFp8 ? "fp8" : "auto"; }

void expect_device_for(KvCacheType type, const TransformerConfig& config, Stream stream) {
  if (stream.is_cpu()) return;
  if (config.multi_latent_attention) {
    if (config.kv_lora_rank <= kernels::kMaxCudaLatent &&
        config.qk_pos_emb_head_dim <= kernels::kMaxCudaRotated) {
      return;
    }
    throw ConfigError(fmt::format(
        "generation on a GPU reads latents of at most {} and rotated keys of at most {} channels, "
        "and this model has --kv-lora-rank {} and --qk-pos-emb-head-dim {}; give --device cpu",
        kernels::kMaxCudaLatent, kernels::kMaxCudaRotated, config.kv_lora_rank,
        config.qk_pos_emb_head_dim));
  }
  if (type == KvCacheType::kModel ||
      kernels::has_fp8_pages(config.params_dtype, config.kv_channels, stream.device)) {
    return;
  }
  throw ConfigError(fmt::format(
      "--kv-cache-dtype fp8 on a GPU needs a model in 16 bits with heads of 16, 32, .. 128 "
      "channels, and this one has heads of {} in {}; give --kv-cache-dtype auto",
      config.kv_channels, name_of(config.params_dtype)));
}

int64_t kv_cache_bytes_per_token(const TransformerConfig& config, int64_t num_layers,
                                 int64_t tensor_parallel_size, KvCacheType type) {
  const CachedHeads heads(config, tensor_parallel_size);
  const int64_t channels = heads.key + heads.value;
  const int64_t bytes = type == KvCacheType::kFp8
                            ? channels * size_of(DType::kFloat8E4M3) + 2 * kBytesOfScale
                            : channels * size_of(config.params_dtype);
  return num_layers * heads.groups * bytes + size_of(DType::kInt32);
}

KvCache::KvCache(const TransformerConfig& config, const ModelChunk& chunk,
                 int64_t tensor_parallel_size, int64_t num_pages, int64_t page_tokens,
                 Stream stream, KvCacheType type)
    : first_layer_(chunk.first_layer),
      page_tokens_(page_tokens),
      type_(type),
      heads_({config.num_attention_heads / tensor_parallel_size, config.kv_channels}),
      ids_(zeros({num_pages, page_tokens}, DType::kInt32, stream)) {
  expect_device_for(type, config, stream);
  if (config.multi_latent_attention) latent_heads_ = latent_heads(config, tensor_parallel_size);
  latent_ = config.kv_lora_rank;
  const CachedHeads heads(config, tensor_parallel_size);
  const bool is_fp8 = type == KvCacheType::kFp8;
  const DType dtype = is_fp8 ? DType::kFloat8E4M3 : config.params_dtype;
  for (int64_t layer = 0; layer < chunk.num_layers; ++layer) {
    const auto store = [&](int64_t channels, DType of_store) {
      return Tensor({num_pages, page_tokens, heads.groups, channels}, of_store, stream);
    };
    layers_.push_back({store(heads.key, dtype), store(heads.value, dtype),
                       is_fp8 ? store(2, DType::kFloat32) : Tensor()});
  }
}

PagedBatch KvCache::batch_of(std::span<const PagedRow> rows) const {
  const Stream stream = ids_.stream();
  return latent_heads_ ? latent_batch(rows, page_tokens_, *latent_heads_, latent_, stream)
                       : paged_batch(rows, page_tokens_, heads_, stream);
}

void KvCache::complete(PagedBatch& batch, int64_t rows) const {
  const Stream stream = ids_.stream();
  if (!latent_heads_) {
    batch.workspace = heads_.workspace(rows, batch.max_length, stream);
    return;
  }
  batch.decode_tokens = rows;
  batch.slots = Tensor({rows}, DType::kInt32, stream);
}

void KvCache::put_slots(PagedBatch& batch) const {
  if (!latent_heads_) return;
  kernels::new_token_slots(batch.slots.view(),
                           {std::as_const(batch.pages).view(), std::as_const(batch.lengths).view(),
                            std::as_const(batch.queries).view(), batch.max_length},
                           page_tokens_, ids_.stream());
}

void KvCache::copy_page(int32_t to, int32_t from) {
  const auto copy = [&](Tensor& store) {
    if (!store.defined()) return;
    Tensor page = store.slice(to, 1);
    copy_into(page, store.slice(from, 1));
  };
  for (PagedStore& layer : layers_) {
    copy(layer.keys);
    copy(layer.values);
    copy(layer.scales);
  }
  copy(ids_);
}

}  // namespace megatron
