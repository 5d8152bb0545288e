#pragma once

#include <cstdint>
#include <vector>

#include "megatron/parallel/pipeline/model_chunk.h"
#include "megatron/tensor/tensor.h"
#include "megatron/transformer/config.h"

namespace megatron {

// Keys (rotated) and values of a chunk's layers for the tokens a generation has seen. Allocated
// whole: 2 * layers * capacity * batch * query groups / tp * head size elements of params_dtype.
class KvCache {
 public:
  // For the query groups of one of `tensor_parallel_size` ranks.
  KvCache(const TransformerConfig& config, const ModelChunk& chunk, int64_t tensor_parallel_size,
          int64_t batch, int64_t capacity, Stream stream);

  int64_t batch() const { return batch_; }
  int64_t capacity() const { return capacity_; }
  // Tokens of each row in the cache. Attention sees them before those of the running forward pass.
  int64_t length() const { return length_; }
  // Call it after a forward pass of `tokens` tokens. REQUIRES: length() + tokens <= capacity().
  void advance(int64_t tokens);

  // [capacity, b, groups, d]; rows [0, length) are valid. `layer` counts from 0 over the whole
  // model and is one of the chunk's.
  Tensor& keys(int64_t layer) { return keys_[static_cast<size_t>(layer - first_layer_)]; }
  Tensor& values(int64_t layer) { return values_[static_cast<size_t>(layer - first_layer_)]; }

 private:
  int64_t first_layer_;
  int64_t batch_;
  int64_t capacity_;
  int64_t length_ = 0;
  std::vector<Tensor> keys_;
  std::vector<Tensor> values_;
};

}  // namespace megatron
