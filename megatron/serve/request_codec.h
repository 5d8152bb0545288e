#pragma once

#include <nlohmann/json_fwd.hpp>

#include "megatron/inference/request.h"

namespace megatron::serve {

// Serialization of a request for the broadcast from rank 0: all fields, floating-point numbers
// exactly.
nlohmann::json encoded(const Request& request);
Request decoded(const nlohmann::json& value);

}  // namespace megatron::serve
