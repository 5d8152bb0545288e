#pragma once

#include "megatron/transformer/config.h"

namespace megatron {

// A GPT that the CPU trains in milliseconds, without dropout; not resolved.
inline TransformerConfig small_config(int64_t num_layers) {
  TransformerConfig c;
  c.num_layers = num_layers;
  c.hidden_size = 64;
  c.num_attention_heads = 4;
  c.seq_length = 64;
  c.max_position_embeddings = 64;
  c.padded_vocab_size = 256;
  c.hidden_dropout = 0;
  c.attention_dropout = 0;
  return c;
}

// Recomputes whole layers.
inline void recompute(TransformerConfig& c, std::vector<std::string> modules) {
  c.recompute_granularity = RecomputeGranularity::kSelective;
  c.recompute_modules = std::move(modules);
}

inline void recompute(TransformerConfig& c, RecomputeMethod method, int64_t num_layers) {
  c.recompute_granularity = RecomputeGranularity::kFull;
  c.recompute_method = method;
  c.recompute_num_layers = num_layers;
}

// The peak is in a layer.
inline void offload(TransformerConfig& c, int64_t num_layers) {
  c.cpu_offloading_num_layers = num_layers;
  c.min_offloaded_tensor_size = 0;
  c.padded_vocab_size = 32;
}

}  // namespace megatron
