#include "megatron/transformer/kv_cache.h"

#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/kernels/paged_attention.h"

namespace megatron {
namespace {

constexpr int64_t kBytesOfScale = sizeof(float);

PagedStore store_of(const Shape& shape, DType dtype, Stream stream) {
  PagedStore store{Tensor(shape, dtype, stream), Tensor(shape, dtype, stream)};
  if (is_float8(dtype)) {
    store.scales = Tensor({shape[0], shape[1], shape[2], 2}, DType::kFloat32, stream);
  }
  return store;
}

}  // namespace

const char* name_of(KvCacheType type) { return type == KvCacheType::kFp8 ? "fp8" : "auto"; }

void expect_device_for(KvCacheType type, const TransformerConfig& config, Stream stream) {
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
  const int64_t head = type == KvCacheType::kFp8
                           ? config.kv_channels * size_of(DType::kFloat8E4M3) + kBytesOfScale
                           : config.kv_channels * size_of(config.params_dtype);
  return 2 * num_layers * config.query_groups_of_rank(tensor_parallel_size) * head +
         size_of(DType::kInt32);
}

KvCache::KvCache(const TransformerConfig& config, const ModelChunk& chunk,
                 int64_t tensor_parallel_size, int64_t num_pages, int64_t page_tokens,
                 Stream stream, KvCacheType type)
    : first_layer_(chunk.first_layer),
      page_tokens_(page_tokens),
      type_(type),
      ids_(zeros({num_pages, page_tokens}, DType::kInt32, stream)) {
  expect_device_for(type, config, stream);
  const Shape shape = {num_pages, page_tokens, config.query_groups_of_rank(tensor_parallel_size),
                       config.kv_channels};
  const DType dtype = type == KvCacheType::kFp8 ? DType::kFloat8E4M3 : config.params_dtype;
  for (int64_t layer = 0; layer < chunk.num_layers; ++layer) {
    layers_.push_back(store_of(shape, dtype, stream));
  }
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
