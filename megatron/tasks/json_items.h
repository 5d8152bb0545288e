#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace megatron {

enum class JsonItems { kArray, kLines };

// How the items of such a file are written: a file .txt or .jsonl has one a line, others are an
// array.
JsonItems json_items_of(const std::filesystem::path& file);

// The items of a file. Throws IoError; FormatError naming the item that is not JSON.
std::vector<nlohmann::json> read_json_items(const std::filesystem::path& file, JsonItems items);

}  // namespace megatron
