#pragma once

#include <cstdint>
#include <string>

#include "megatron/parallel/pipeline/model_chunk.h"

namespace megatron {

// A layer within its model.
struct LayerPlace {
  std::string name;       // "decoder.layers.3": begins the names of its dropout sites
  int64_t layer = 0;      // counts from 0 over the stack
  bool is_causal = true;  // as its stack
};

// A stack of layers. GPT has one, "decoder"; BERT has one, "encoder"; T5 has both.
struct Stack {
  std::string name = "decoder";      // begins the names of the parameters and of the dropout sites
  bool is_causal = true;             // a token sees no later token
  bool has_cross_attention = false;  // each layer also attends to the output of an encoder

  // `layer` counts from 0 over the stack.
  LayerPlace place(int64_t layer) const {
    return {name + ".layers." + std::to_string(layer), layer, is_causal};
  }
};

// The layers [first_layer, first_layer + num_layers) of a stack: its part in one chunk of the
// model.
struct StackSlice {
  int64_t first_layer = 0;
  int64_t num_layers = 0;
  bool has_end = true;               // includes the end of the stack: its final norm
  bool begins_with_mlp = false;      // its first layer has the last part alone
  bool ends_with_attention = false;  // its last layer lacks the last part
};

// The part of a model's only stack in a chunk.
inline StackSlice slice_of(const ModelChunk& chunk) {
  return {chunk.first_layer, chunk.num_layers, chunk.has_head, chunk.begins_with_mlp,
          chunk.ends_with_attention};
}

}  // namespace megatron
