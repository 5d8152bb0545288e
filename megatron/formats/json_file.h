#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace megatron {

// Reads a JSON file. Throws IoError, or FormatError with the path for invalid JSON, duplicate keys
// in an object, or nesting deeper than in any file of this project.
nlohmann::json read_json(const std::filesystem::path& path);

// The same for text from `path`.
nlohmann::json parse_json(std::string_view text, const std::filesystem::path& path);

}  // namespace megatron
