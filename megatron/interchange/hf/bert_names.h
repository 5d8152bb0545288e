#pragma once

#include "megatron/formats/name_rule.h"

namespace megatron {

// The parameters of BertModel in transformers' MegatronBertForPreTraining.
NameTable hf_bert_names();

}  // namespace megatron
