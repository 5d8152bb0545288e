#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "megatron/parallel/parallel_context.h"
#include "megatron/transformer/config.h"
#include "megatron/transformer/stack.h"
#include "megatron/transformer/transformer_layer.h"

namespace megatron {

// SelfAttention, LatentAttention, CrossAttention, Mlp, ExpertMlp.
enum class PartKind { kSelfAttention, kLatentAttention, kCrossAttention, kMlp, kExpertMlp };

// A branch of the residual stream: a norm, the part that reads it, and a norm of its output.
struct BranchRecipe {
  PartKind part = PartKind::kSelfAttention;
  std::string name;  // within the layer, of the part's parameters and dropout sites
  std::string norm;  // likewise, of the norm's parameters; empty: the part reads the stream itself
  std::string post_norm = {};  // likewise, of the norm of the part's output; empty: none
  BranchInput input = BranchInput::kStream;
  bool residual_is_normed = false;  // the part's output is added to the norm's output
};

// The description of one layer, as data.
struct LayerRecipe {
  LayerConfig config;
  LayerPlace place;
  std::vector<BranchRecipe> branches;
};

// The recipe of a layer of a GPT, a BERT or a T5: this function alone decides what differs from
// layer to layer. `layer` counts from 0 over the stack. Throws ConfigError for cross-attention with
// parallel_residual.
LayerRecipe layer_recipe(const TransformerConfig& config, const Stack& stack, int64_t layer);

// Builds the branches of a recipe, and a layer of them.
std::vector<ResidualBranch> make_branches(const LayerRecipe& recipe, const TensorParallel& tp,
                                          Stream stream);
std::unique_ptr<TransformerLayer> make_layer(const LayerRecipe& recipe, const TensorParallel& tp,
                                             Stream stream);

// make_layer(), or a function in its place for a model with parts of its own.
using LayerMaker = std::function<std::unique_ptr<TransformerLayer>(
    const LayerRecipe& recipe, const TensorParallel& tp, Stream stream)>;

}  // namespace megatron
