#include "megatron/tasks/json_items.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"
#include "megatron/tasks/detokenize.h"

namespace megatron {

using Json = nlohmann::json;

JsonItems json_items_of(const std::filesystem::path& file) {
  const std::string extension = file.extension().string();
  return extension == ".txt" || extension == ".jsonl" ? JsonItems::kLines : JsonItems::kArray;
}

std::vector<Json> read_json_items(const std::filesystem::path& file, JsonItems items) {
  const std::string text = read_text(file);
  std::vector<Json> read;
  const auto refuse = [&] {
    throw FormatError(fmt::format("{}: item {} is not JSON; write {}", file.string(), read.size(),
                                  items == JsonItems::kArray
                                      ? "a JSON array, or one object a line in a file "
                                        ".txt or .jsonl"
                                      : "one object a line"));
  };
  const auto parsed = [&](std::string_view piece) {
    try {
      return parse_json(piece, kJsonLine, fmt::format("{}: item {}", file.string(), read.size()));
    } catch (const JsonTooLarge&) {
      throw;
    } catch (const FormatError&) {
      refuse();
      throw;
    }
  };
  if (items == JsonItems::kArray) {
    Json list = parsed(text);
    if (!list.is_array()) refuse();
    return std::move(list.get_ref<Json::array_t&>());
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const bool is_last = begin >= text.size();
    if (!is_last || !stripped(line).empty()) read.push_back(parsed(line));
  }
  return read;
}

}  // namespace megatron
