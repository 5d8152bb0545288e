#pragma once

#include <span>

#include "megatron/interchange/hf/family.h"

// Parts of the descriptions of families with experts.
namespace megatron {

// The weights of auxiliary losses. Warns of a file whose model has one when it is trained.
void bind_hf_router_losses(HfBinding& fields);

// Layers with experts: decoder_sparse_step and mlp_only_layers (Qwen).
void bind_hf_sparse_layers(HfBinding& fields, TransformerConfig& config);
// first_k_dense_replace: all layers behind the first ones (DeepSeek).
void bind_hf_first_dense_layers(HfBinding& fields, TransformerConfig& config, int64_t otherwise);

// mlp.gate and mlp.experts.{e} with gates, as Qwen and DeepSeek have them.
std::span<const NameRule> hf_expert_names();

}  // namespace megatron
