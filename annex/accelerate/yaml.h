#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace megatron::frontends {

// The value of a YAML document. Plain scalars get the types that YAML 1.1 gives them, as PyYAML
// reads them: `no` and `off` are false, `0x10` is 16, `1e3` is text. The last value of a repeated
// key is used. Throws FormatError with `source`, line and column.
nlohmann::json read_yaml(const std::string& text, const std::string& source);

// The text that PyYAML's safe_dump writes: a line for each key, keys sorted, and quotes around a
// text that would read as another type. Lines are not folded.
std::string yaml_text(const nlohmann::json& value);

}  // namespace megatron::frontends
