#include "megatron/transformer/kv_cache.h"

#include <string>

#include "megatron/core/error.h"

namespace megatron {

KvCache::KvCache(const TransformerConfig& config, const ModelChunk& chunk,
                 int64_t tensor_parallel_size, int64_t batch, int64_t capacity, Stream stream)
    : first_layer_(chunk.first_layer), batch_(batch), capacity_(capacity) {
  const Shape shape = {capacity, batch, config.query_groups_of_rank(tensor_parallel_size),
                       config.kv_channels};
  for (int64_t layer = 0; layer < chunk.num_layers; ++layer) {
    keys_.emplace_back(shape, config.params_dtype, stream);
    values_.emplace_back(shape, config.params_dtype, stream);
  }
}

void KvCache::advance(int64_t tokens) {
  invariant(length_ + tokens <= capacity_, "a generation stays within its cache");
  length_ += tokens;
}

}  // namespace megatron
