#pragma once

#include <string>

#include "megatron/core/arg_map.h"
#include "megatron/run/loaded_model.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {

// A command's choice of a model.
struct ModelFlags : ModelChoice {
  ArgMap without_effect;
};
void add_model_flags(FlagTable& table, ModelFlags& flags);
// --model-type: GPT, BERT, T5.
void add_model_type(FlagTable& table, ModelKind& kind, std::string help);
void add_inference_weights(FlagTable& table, InferenceWeights& weights);
// For commands that generate.
void add_kv_cache_dtype(FlagTable& table, KvCacheType& type);

}  // namespace megatron::cli
