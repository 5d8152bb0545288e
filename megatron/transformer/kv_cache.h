#pragma once

#include <cstdint>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/ops/paged_attention.h"
#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The format of cached keys and values: the model's dtype, or FP8 (kernels::KeyValuePages).
enum class KvCacheType { kModel, kFp8 };
const char* name_of(KvCacheType type);  // "auto", "fp8"

// Throws ConfigError where the device has no kernel for the type.
void expect_device_for(KvCacheType type, const TransformerConfig& config, Stream stream);

// Bytes of a KvCache of `num_layers` layers for each of its tokens.
int64_t kv_cache_bytes_per_token(const TransformerConfig& config, int64_t num_layers,
                                 int64_t tensor_parallel_size, KvCacheType type);

// Keys (rotated) and values of a chunk's layers, in pages. PagePool knows the owners of pages.
// Allocates all memory in the constructor: 2 * layers * pages * page_tokens * query groups / tp
// heads, each of head size elements of params_dtype, or of as many bytes and a scale of 4. The ids
// of the tokens take 4 bytes each.
class KvCache {
 public:
  // For the query groups of one of `tensor_parallel_size` ranks. Throws as expect_device_for().
  KvCache(const TransformerConfig& config, const ModelChunk& chunk, int64_t tensor_parallel_size,
          int64_t num_pages, int64_t page_tokens, Stream stream,
          KvCacheType type = KvCacheType::kModel);

  int64_t page_tokens() const { return page_tokens_; }
  KvCacheType type() const { return type_; }
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
