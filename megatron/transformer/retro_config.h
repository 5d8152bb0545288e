#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megatron {

struct TransformerConfig;

// The residual of cross-attention in the encoder of neighbours.
enum class RetroResidual {
  kPre,   // the residual stream, as every layer does
  kPost,  // its norm. Compat: Megatron Core's Retro, of every version
};

// Retro (Borgeaud et al. 2022, arXiv:2112.04426): a GPT some of whose layers also attend to texts,
// "neighbours", which were retrieved for each chunk of the sequence. Flags are --retro-<name>.
struct RetroConfig {
  bool add_retriever = false;          // the other fields have no effect without it
  std::vector<int64_t> layer_numbers;  // decoder layers that attend, from 1; empty: see resolved
  int64_t chunk_length = 64;           // --retro-gpt-chunk-length, m: tokens of a chunk
  int64_t num_neighbors = 2;           // k, of a chunk
  int64_t num_retrieved_chunks = 2;    // of a neighbour: the chunk that was found and what follows
  int64_t encoder_layers = 2;
  double encoder_hidden_dropout = 0.1;     // probability in [0, 1)
  double encoder_attention_dropout = 0.1;  // probability in [0, 1)
  RetroResidual encoder_residual = RetroResidual::kPre;
  double attention_gate = 1;  // scale of the cross-attention to neighbours; 0 disables it
  // --finetune from a GPT: norms before cross-attention begin as those before the MLP.
  bool fit_copy_mlp_norm = false;

  // True if layers attend to neighbours.
  bool reads_neighbors() const { return add_retriever && attention_gate != 0; }
  // l = ceil(s / m); the first chunk of a sequence may be shorter.
  int64_t num_chunks(int64_t seq_length) const {
    return (seq_length + chunk_length - 1) / chunk_length;
  }
  // r: tokens of a neighbour.
  int64_t neighbor_length() const { return num_retrieved_chunks * chunk_length; }
  // l k r: tokens of all neighbours of a sequence; 0 if no layer attends to them.
  int64_t neighbor_tokens(int64_t seq_length) const {
    return reads_neighbors() ? num_chunks(seq_length) * num_neighbors * neighbor_length() : 0;
  }
  // True if layer `layer`, counted from 0, attends to neighbours. The first such layer contains
  // their encoder.
  bool has_layer(int64_t layer) const;
  bool is_first_layer(int64_t layer) const;
};

// Fills layer_numbers as Megatron-LM does: every third layer, from layer 6 on for up to 15 layers,
// else from layer 9 on.
RetroConfig resolved(RetroConfig config, int64_t num_layers);

// Everything wrong with the Retro of a resolved config, one sentence each; empty without one.
std::vector<std::string> retro_problems(const TransformerConfig& config);

// True if only Retro has a parameter of this name; a GPT has all others.
bool is_retro_parameter(const std::string& name);

}  // namespace megatron
