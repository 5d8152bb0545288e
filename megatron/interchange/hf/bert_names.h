#pragma once

#include "megatron/formats/name_rule.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The parameters of a BertModel in transformers: in MegatronBertForPreTraining, whose norms come
// before the branches, or in BertForPreTraining, whose norms come after them. Without the binary
// head: in MegatronBertForMaskedLM and BertForMaskedLM.
//
// BertForPreTraining is the model of --apply-residual-connection-post-layernorm: a layer whose
// residual is the output of its first norm is a layer that ends with the norm of the one before.
// So the norm of the embedding is our first norm, and the norm that ends a layer our next one.
NameTable hf_megatron_bert_names(const TransformerConfig& config);
NameTable hf_bert_names(const TransformerConfig& config);

}  // namespace megatron
