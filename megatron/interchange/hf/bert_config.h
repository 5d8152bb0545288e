#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megatron/interchange/hf/fields.h"
#include "megatron/transformer/config.h"

// The config.json of transformers' MegatronBert and Bert, ForPreTraining and ForMaskedLM.
namespace megatron {

// Reads the fields of a model_type "megatron-bert" or "bert".
void read_hf_bert(const HfFields& fields, TransformerConfig& config);

// What such a model does not express of a configuration; `is_bert`: of model_type "bert".
std::vector<std::string> hf_bert_differences(const TransformerConfig& config, bool is_bert);

// The fields that say the rest.
nlohmann::json hf_bert_fields(const TransformerConfig& config);

}  // namespace megatron
