#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace megatron {

// A JSON file. Throws IoError, or FormatError with the path for text that is not JSON, objects with
// a key twice, or nesting deeper than any file of ours.
nlohmann::json read_json(const std::filesystem::path& path);

// The same for text that came from `path`.
nlohmann::json parse_json(std::string_view text, const std::filesystem::path& path);

}  // namespace megatron
