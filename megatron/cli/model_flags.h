#pragma once

#include "megatron/core/arg_map.h"
#include "megatron/run/loaded_model.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {

// The model that a command uses, as its flags choose it.
struct ModelFlags : ModelChoice {
  ArgMap without_effect;
};
void add_model_flags(FlagTable& table, ModelFlags& flags);

}  // namespace megatron::cli
