#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace megatron::hf {

// Changes a text of valid UTF-8. Thread safe.
using Normalizer = std::function<void(std::string&)>;

// The "normalizer" of a tokenizer.json; one that changes nothing for null. Throws FormatError on
// a type that is not known.
Normalizer make_normalizer(const nlohmann::json& json);

}  // namespace megatron::hf
