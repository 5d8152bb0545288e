#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/ops/latent_heads.h"
#include "megatron/ops/paged_attention.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The format of cached keys, values and latents: the model's dtype, or FP8
// (kernels::KeyValuePages).
enum class KvCacheType { kModel, kFp8 };
const char* name_of(KvCacheType type);  // "auto", "fp8"

// Throws ConfigError where the device has no kernel for the type.
void expect_device_for(KvCacheType type, const TransformerConfig& config, Stream stream);

// Bytes of a KvCache of `num_layers` layers for each of its tokens.
int64_t kv_cache_bytes_per_token(const TransformerConfig& config, int64_t num_layers,
                                 int64_t tensor_parallel_size, KvCacheType type);

// Keys (rotated) and values of a chunk's layers, in pages. PagePool knows the owners of pages.
// Allocates all memory in the constructor: for each layer and token query groups / tp keys and
// values of kv_channels; with latent attention, on each rank, one key of qk_pos_emb_head_dim and
// one latent of kv_lora_rank channels. They have elements of params_dtype, or as many bytes and a
// scale of 4 each. The ids of the tokens take 4 bytes each.
class KvCache {
 public:
  // For one of `tensor_parallel_size` ranks. Throws as expect_device_for().
  KvCache(const TransformerConfig& config, const ModelChunk& chunk, int64_t tensor_parallel_size,
          int64_t num_pages, int64_t page_tokens, Stream stream,
          KvCacheType type = KvCacheType::kModel);

  int64_t page_tokens() const { return page_tokens_; }
  KvCacheType type() const { return type_; }
  bool is_latent() const { return latent_heads_.has_value(); }

  // The rows of a batch, as attention to this cache reads them.
  PagedBatch batch_of(std::span<const PagedRow> rows) const;
  // Completes the batch of `rows` decode rows of one token, whose pages, lengths and queries may
  // change from step to step, and so (with latents) its slots: put_slots() then computes them.
  void complete(PagedBatch& batch, int64_t rows) const;
  void put_slots(PagedBatch& batch) const;
  // `layer` counts from 0 over the whole model and is one of the chunk's.
  PagedStore& layer(int64_t layer) { return layers_[static_cast<size_t>(layer - first_layer_)]; }
  // Ids of the cached tokens: [pages, tokens of a page] int32.
  Tensor& ids() { return ids_; }
  // Copies page `from` to page `to` in all layers.
  void copy_page(int32_t to, int32_t from);

 private:
  int64_t first_layer_;
  int64_t page_tokens_;
  KvCacheType type_;
  PagedHeads heads_;
  std::optional<LatentHeads> latent_heads_;
  int64_t latent_ = 0;  // channels of a latent
  std::vector<PagedStore> layers_;
  Tensor ids_;
};

// Cache rows of the tokens of one forward pass. In an encoder-decoder model each token also has the
// cross-attention keys and values of its text, in the pages of a second cache.
struct CachedBatch {
  KvCache& cache;
  PagedBatch rows = {};
  KvCache* encoder_cache = nullptr;
  PagedBatch encoder_rows = {};  // a row of one token for each token
};

}  // namespace megatron
