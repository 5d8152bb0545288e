#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace megatron::hf {

// Normalizes a text of valid UTF-8. Thread safe.
using Normalizer = std::function<void(std::string&)>;

// The "normalizer" of a tokenizer.json; the identity for null. Throws FormatError for an unknown
// type.
Normalizer make_normalizer(const nlohmann::json& json);

}  // namespace megatron::hf
