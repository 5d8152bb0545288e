#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace megatron::frontends {

// Reads the JSON that DeepSpeed reads (hjson): comments (#, //, /* */), keys and texts without
// quotes, a comma after the last entry, line ends instead of commas, an object without braces.
// Throws FormatError with `source` and the position, also for a key that appears twice in a map.
nlohmann::json read_relaxed_json(const std::string& text, const std::string& source);

}  // namespace megatron::frontends
