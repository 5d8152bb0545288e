#pragma once

#include <cstdint>
#include <vector>

#include "megatron/inference/generate.h"

// Retro generation with retrieved neighbours of the prompt.
namespace megatron {

// Neighbours that were retrieved for a prompt.
struct PromptNeighbors {
  std::vector<int64_t> tokens;  // [k, r]
  int64_t length = 0;           // r
};

// Division of a prompt and its continuation into two chunks. Compat: as in Megatron-LM's
// InstructRetro.
struct TwoChunks {
  int64_t total = 0;         // tokens of both: twice the prompt, limited by the model's positions
  int64_t chunk_length = 0;  // m: tokens of the prompt
  int64_t first = 0;         // tokens of the first chunk, total - m; the neighbours belong to it
};
// Throws ConfigError if no token fits after the prompt.
TwoChunks two_chunks(int64_t prompt_length, const TransformerConfig& config);

// Continues the prompt. Neighbours are encoded once; keys and values of all layers are cached.
// Draws as Engine does; supports the request's prompt, max_new_tokens, sampling without logit_bias,
// seed, row, vocab_size and stop_tokens. The continuation ends at the end of the second chunk.
// Every rank of the model calls it and gets the same result. Throws ConfigError for an empty prompt
// or an id that is not in the vocabulary. REQUIRES: the model is a Retro on one stage whose gate is
// open.
Generation generate_with_neighbors(const InferenceModel& model, const Request& request,
                                   const PromptNeighbors& neighbors);

}  // namespace megatron
