#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace megatron {

// The text of json.dumps(value, indent=4). The digests of such texts name cache files, so every
// byte counts.
std::string python_json(const nlohmann::ordered_json& value);

}  // namespace megatron
