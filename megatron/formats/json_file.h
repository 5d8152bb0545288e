#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace megatron {

// Reads a JSON file of a checkpoint, whose keys are unique; see core/json.h for limits and errors.
// Throws IoError and FormatError.
nlohmann::json read_json(const std::filesystem::path& path);

// The same for text from `path`.
nlohmann::json parse_json(std::string_view text, const std::filesystem::path& path);

}  // namespace megatron
