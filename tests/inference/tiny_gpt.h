#pragma once

#include <memory>

#include "megatron/models/gpt/gpt_model.h"
#include "megatron/transformer/init.h"

namespace megatron {

// Two layers, 37 tokens, 64 positions, weights so large that the tokens differ in probability.
inline std::unique_ptr<GptModel> tiny_gpt(
    PositionEmbedding positions = PositionEmbedding::kLearnedAbsolute, Stream stream = {},
    DType dtype = DType::kFloat32, int64_t hidden_size = 32,
    void (*change)(TransformerConfig& config) = nullptr) {
  TransformerConfig config;
  config.num_layers = 2;
  config.hidden_size = hidden_size;
  config.num_attention_heads = 4;
  config.seq_length = 64;
  config.max_position_embeddings = 64;
  config.padded_vocab_size = 40;
  config.true_vocab_size = 37;
  config.position_embedding_type = positions;
  config.init_method_std = 0.3;
  config.hidden_dropout = 0;
  config.attention_dropout = 0;
  config.params_dtype = dtype;
  if (change != nullptr) change(config);
  auto model = std::make_unique<GptModel>(resolved(config), stream);
  initialize(*model, 5);
  return model;
}

}  // namespace megatron
