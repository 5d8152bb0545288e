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

// Sizes, norms, the gated MLP and ties of a Llama, whose embeddings are tied by default or not.
void bind_hf_llama_sizes(HfBinding& fields, TransformerConfig& config, bool is_tied = false);

// attention_bias and mlp_bias.
void bind_hf_llama_biases(HfBinding& fields, TransformerConfig& config);

std::vector<NameRule> rules_of(std::initializer_list<std::span<const NameRule>> tables);

// The names of a Llama, before them the family's own.
NameTable hf_llama_names(std::span<const NameRule> own = {});

}  // namespace megatron
