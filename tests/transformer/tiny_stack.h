#pragma once

#include <utility>
#include <vector>

#include "megatron/transformer/transformer_block.h"
#include "tests/support/tensors.h"

namespace megatron {

inline constexpr int64_t kLength = 12;         // of a sequence
inline constexpr int64_t kEncoderLength = 16;  // of the sequence that a decoder attends to
inline constexpr int64_t kBatch = 2;

// A stack that the CPU runs in milliseconds; resolved.
inline TransformerConfig tiny_config() {
  TransformerConfig c;
  c.num_layers = 2;
  c.hidden_size = 32;
  c.num_attention_heads = 4;
  c.seq_length = kLength;
  c.max_position_embeddings = kEncoderLength;
  c.hidden_dropout = 0;
  c.attention_dropout = 0;
  c.init_method_std = 0.2;
  return resolved(c);
}

inline const Stack kDecoder = {.name = "decoder"};
inline const Stack kEncoder = {.name = "encoder", .is_causal = false};
inline const Stack kCrossDecoder = {.name = "decoder", .has_cross_attention = true};

// [b, s]: hides all tokens of sample i from token lengths[i] on.
inline Tensor padding_mask(const std::vector<int64_t>& lengths, int64_t s) {
  Tensor mask({static_cast<int64_t>(lengths.size()), s}, DType::kBool, Stream{});
  for (int64_t i = 0; i < mask.numel(); ++i) {
    mask.view().as<bool>()[i] = i % s >= lengths[static_cast<size_t>(i / s)];
  }
  return mask;
}

inline Tensor random_hidden(int64_t s, int64_t hidden_size, uint64_t seed) {
  return random_normal({s, kBatch, hidden_size}, {.seed = seed});
}

}  // namespace megatron
