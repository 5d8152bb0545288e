#pragma once

#include <string>

#include "megatron/core/arg_map.h"

namespace megatron {

// Values as JSON of Weights & Biases. Compat: NaN and Infinity, as Python's json writes them and
// the client reads them.
std::string wandb_json(double value);
std::string wandb_json(const ArgValue& setting);

}  // namespace megatron
