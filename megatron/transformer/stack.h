#pragma once

#include <cstdint>
#include <string>

#include "megatron/transformer/retro_config.h"

namespace megatron {

// A stack of like layers. GPT has one, "decoder"; BERT has one, "encoder"; T5 has both. Retro has a
// decoder whose layers in TransformerConfig::retro attend to neighbours, and the neighbours'
// encoder inside it.
struct Stack {
  std::string name = "decoder";      // begins the names of the parameters and of the dropout sites
  bool is_causal = true;             // a token sees no later token
  bool has_cross_attention = false;  // each layer also attends to the output of an encoder
  bool reads_chunks = false;  // the neighbours' encoder: its first layer attends to their chunks

  // Does the layer attend to neighbours? `layer` counts from 0 over the stack.
  bool has_neighbors(const RetroConfig& retro, int64_t layer) const {
    return is_causal && retro.has_layer(layer);
  }
  // "decoder.layers.3": the name of a layer within the model. `layer` counts from 0 over the stack.
  std::string layer_name(int64_t layer) const { return name + ".layers." + std::to_string(layer); }
};

// The layers [first_layer, first_layer + num_layers) of a stack: the part that a chunk of a model
// has.
struct StackSlice {
  int64_t first_layer = 0;
  int64_t num_layers = 0;
  bool has_end = true;  // the stack ends here: its final norm
};

}  // namespace megatron
