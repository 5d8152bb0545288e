#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace megatron {

// A number as printed by Python's repr: the shortest digits that read back as the same double, with
// an exponent below 1e-4 and from 1e16 on (0.1, 1.0, 1e-07, 1e+16).
std::string python_repr(double value);

// The text of json.dumps(value, indent=4). The digests of such texts name cache files, so every
// byte counts.
std::string python_json(const nlohmann::ordered_json& value);

}  // namespace megatron
