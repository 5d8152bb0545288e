#pragma once

#include <optional>
#include <string>

#include "megatron/core/arg_map.h"
#include "megatron/inference/draft.h"
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

// Loads the model of --speculative-model, if drafts come from it, in the layout, the cache's type
// and the weights' type of `model`; sets drafts.draft_model. Nothing otherwise. Throws as
// load_model().
std::optional<LoadedModel> load_draft_model(DraftOptions& drafts, const ModelFlags& model,
                                            const comm::Group& world);

}  // namespace megatron::cli
