#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "megatron/interchange/hf/family.h"

// Parts of a description that several families share.
namespace megatron {

// As many keys and values as queries, and heads that fill the hidden size.
void bind_hf_whole_heads(HfBinding& fields, TransformerConfig& config);

// One dropout of the hidden states, which two fields state.
void bind_hf_common_dropout(HfBinding& fields, TransformerConfig& config, const char* name,
                            const char* other, double otherwise);

// hidden_size / num_attention_heads, also of a config.json with a wrong size.
int64_t hf_head_size(const TransformerConfig& config);

// Sizes, norms, the gated MLP and ties of a Llama, whose embeddings are tied by default or not, and
// whose hidden_act is one of the activations.
void bind_hf_llama_sizes(HfBinding& fields, TransformerConfig& config, bool is_tied = false,
                         std::span<const HfActivation> activations = kHfSilu);

// attention_bias and mlp_bias: biases of the linear layers of attention, and of those of the MLP.
void bind_hf_llama_biases(HfBinding& fields, TransformerConfig& config);
// A model whose MLP has no biases: attention_bias alone.
void bind_hf_attention_bias(HfBinding& fields, TransformerConfig& config);

// As many keys and values as the field says, or as queries, and heads that fill the hidden size.
void bind_hf_key_value_heads(HfBinding& fields, TransformerConfig& config, const char* name,
                             int64_t otherwise);

// sliding_window of all layers; null: none. A window that holds the longest sequence is none.
void bind_hf_window(HfBinding& fields, TransformerConfig& config, int64_t otherwise);

// sliding_window of the layers that layer_types names; older files leave `otherwise` to be derived,
// 1 for each layer with a window.
void bind_hf_layer_windows(HfBinding& fields, TransformerConfig& config, int64_t otherwise,
                           const std::vector<int>& layers);

// use_sliding_window with max_window_layers, which older files have in place of layer_types: the
// first layers see everything.
void bind_hf_upper_windows(HfBinding& fields, TransformerConfig& config);

// Scores are multiplied by the field, or divided by its root.
void bind_hf_softmax_scale(HfBinding& fields, TransformerConfig& config, const char* name,
                           double otherwise);
void bind_hf_query_scalar(HfBinding& fields, TransformerConfig& config, const char* name,
                          double otherwise);

// 1 / x, such that the reciprocal of a reciprocal of a short decimal number is the number.
double hf_reciprocal(double x);

std::vector<NameRule> rules_of(std::initializer_list<std::span<const NameRule>> tables);

// The names of a BLOOM without its norms, and of the norms of its layers: Falcon has them, too. The
// rows of queries, keys and values are grouped, which is our order.
std::span<const NameRule> hf_bloom_names();
std::span<const NameRule> hf_bloom_norms();

// The names of a Llama, before them the family's own.
NameTable hf_llama_names(std::span<const NameRule> own = {});

}  // namespace megatron
