#pragma once

#include "megatron/formats/name_rule.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The parameters of T5Model in transformers' T5ForConditionalGeneration and
// MT5ForConditionalGeneration.
NameTable hf_t5_names(const TransformerConfig& config);

}  // namespace megatron
