#pragma once

#include <cstdint>

#include "megatron/training/run_config.h"

namespace megatron {

// A GPT on synthetic samples, as a program configures it that reads no command line: four
// iterations without evaluation.
struct MockGpt {
  int64_t num_layers = 1;
  int64_t hidden_size = 16;
  int64_t num_attention_heads = 2;
  int64_t seq_length = 8;
  int64_t vocab_size = 30;

  RunConfig config() const {
    RunConfig config;
    config.transformer.num_layers = num_layers;
    config.transformer.hidden_size = hidden_size;
    config.transformer.num_attention_heads = num_attention_heads;
    config.transformer.seq_length = seq_length;
    config.transformer.max_position_embeddings = seq_length;
    config.optimizer.lr = 1e-2;
    config.training.train_iters = 4;
    config.training.eval_iters = 0;
    config.data.mock_data = true;
    config.data.num_workers = 0;
    config.tokenizer = {.tokenizer_type = "NullTokenizer", .vocab_size = vocab_size};
    return config;
  }
};

}  // namespace megatron
