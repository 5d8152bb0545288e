#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "megatron/core/json.h"

namespace megatron::serve {

// Limits for the body of a request, whose size HttpLimits bounds. A prompt of ids has one value per
// id.
inline constexpr JsonLimits kRequestLimits = {
    .max_depth = 64, .max_values = int64_t{1} << 20, .max_bytes = int64_t{1} << 60};

// The JSON of a body. Throws FormatError and JsonTooLarge.
nlohmann::json parse_body(const std::string& body);

}  // namespace megatron::serve
