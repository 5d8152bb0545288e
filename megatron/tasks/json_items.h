#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace megatron {

enum class JsonItems { kArray, kLines };

// The layout of a file's items: .txt and .jsonl files have one per line, others a JSON array.
JsonItems json_items_of(const std::filesystem::path& file);

// The items of a file. Throws IoError; FormatError, which names an item that is not JSON.
std::vector<nlohmann::json> read_json_items(const std::filesystem::path& file, JsonItems items);

}  // namespace megatron
