#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/interchange/hf/fields.h"
#include "megatron/transformer/config.h"

// The config.json of transformers' MegatronBert and Bert: ForPreTraining, ForMaskedLM and
// ForSequenceClassification.
namespace megatron {

inline constexpr std::string_view kHfClassifier = "ForSequenceClassification";

// The names of the classes (id2label) of a ForSequenceClassification; empty for other models.
std::vector<std::string> hf_class_names(const HfFields& fields);
// The fields of these classes.
nlohmann::json hf_class_fields(const std::vector<std::string>& names);
// LABEL_0, LABEL_1, ...: transformers' default names of classes.
std::vector<std::string> hf_default_class_names(int64_t count);

// Reads the fields of a model_type "megatron-bert" or "bert".
void read_hf_bert(const HfFields& fields, TransformerConfig& config);

// The settings of a configuration that such a model cannot express; `is_bert`: of model_type
// "bert".
std::vector<std::string> hf_bert_differences(const TransformerConfig& config, bool is_bert);

// The fields of the other settings.
nlohmann::json hf_bert_fields(const TransformerConfig& config);

}  // namespace megatron
