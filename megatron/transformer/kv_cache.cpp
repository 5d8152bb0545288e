#include "megatron/transformer/kv_cache.h"

namespace megatron {

KvCache::KvCache(const TransformerConfig& config, const ModelChunk& chunk,
                 int64_t tensor_parallel_size, int64_t num_pages, int64_t page_tokens,
                 Stream stream)
    : first_layer_(chunk.first_layer),
      page_tokens_(page_tokens),
      ids_(zeros({num_pages, page_tokens}, DType::kInt32, stream)) {
  const Shape shape = {num_pages, page_tokens, config.query_groups_of_rank(tensor_parallel_size),
                       config.kv_channels};
  for (int64_t layer = 0; layer < chunk.num_layers; ++layer) {
    layers_.push_back(
        {Tensor(shape, config.params_dtype, stream), Tensor(shape, config.params_dtype, stream)});
  }
}

void KvCache::copy_page(int32_t to, int32_t from) {
  const auto copy = [&](Tensor& store) {
    Tensor page = store.slice(to, 1);
    copy_into(page, store.slice(from, 1));
  };
  for (PagedStore& layer : layers_) {
    copy(layer.keys);
    copy(layer.values);
  }
  copy(ids_);
}

}  // namespace megatron
