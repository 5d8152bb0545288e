#pragma once

#include <nlohmann/json_fwd.hpp>

#include "megatron/inference/request.h"

namespace megatron::serve {

// A request as rank 0 tells it to the others: every field, numbers with all their digits.
nlohmann::json encoded(const Request& request);
Request decoded(const nlohmann::json& value);

}  // namespace megatron::serve
