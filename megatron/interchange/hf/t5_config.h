#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "megatron/interchange/hf/fields.h"
#include "megatron/transformer/config.h"

// The config.json of transformers' T5ForConditionalGeneration and MT5ForConditionalGeneration.
namespace megatron {

// Reads the fields of a model_type "t5" or "mt5".
void read_hf_t5(const HfFields& fields, TransformerConfig& config);

// The settings of a configuration that such a model cannot express.
std::vector<std::string> hf_t5_differences(const TransformerConfig& config);

// The fields of the other settings.
nlohmann::json hf_t5_fields(const TransformerConfig& config);

}  // namespace megatron
