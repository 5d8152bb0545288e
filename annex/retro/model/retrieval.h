#pragma once

#include <cstdint>
#include <vector>

#include "megatron/inference/generate.h"

// Generation with a Retro that reads neighbours of the prompt.
namespace megatron {

// Neighbours that were retrieved for a prompt.
struct PromptNeighbors {
  std::vector<int64_t> tokens;  // [k, r]
  int64_t length = 0;           // r
};

// How a prompt and what follows it are cut into two chunks. Compat: as in Megatron-LM's
// InstructRetro.
struct TwoChunks {
  int64_t total = 0;         // tokens of both: twice the prompt, at most the positions of the model
  int64_t chunk_length = 0;  // m: tokens of the prompt
  int64_t first = 0;         // tokens of the first chunk, total - m: the neighbours are those of it
};
// Throws ConfigError if no token fits behind the prompt.
TwoChunks two_chunks(int64_t prompt_length, const TransformerConfig& config);

// Continues the prompt: its neighbours are read once, keys and values of all layers are kept. Draws
// as Engine does; of the request it knows prompt, max_new_tokens, sampling without logit_bias,
// seed, row, vocab_size and stop_tokens. The continuation ends where the two chunks do. Every rank
// of the model calls it and gets the same result. Throws ConfigError for an empty prompt or an id
// that is not in the vocabulary. REQUIRES: the model is a Retro on one stage whose gate is open.
Generation generate_with_neighbors(const InferenceModel& model, const Request& request,
                                   const PromptNeighbors& neighbors);

}  // namespace megatron
