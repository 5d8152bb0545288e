#include "megatron/data/data_paths.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/data/split.h"

namespace megatron {
namespace {

std::optional<double> as_number(const std::string& item) {
  double value = 0;
  const char* end = item.data() + item.size();
  const auto [stop, error] = std::from_chars(item.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) == 0) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

// The items of one split in the file of --per-split-data-args-path: a list, or one string.
std::vector<std::string> items_of(const nlohmann::json& value, const std::string& path,
                                  std::string_view split) {
  if (value.is_string()) return words_of(value.get<std::string>());
  std::vector<std::string> items;
  for (const auto& item : value) {
    if (item.is_string()) {
      items.push_back(item.get<std::string>());
    } else if (item.is_number()) {
      items.push_back(item.dump());
    } else {
      throw FormatError(fmt::format("{}: \"{}\" holds {}; expected weights and prefixes", path,
                                    split, item.dump()));
    }
  }
  return items;
}

std::array<Blend, 3> read_per_split(const std::string& path) {
  const nlohmann::json file = nlohmann::json::parse(read_text(path), nullptr, false);
  if (!file.is_object()) {
    throw FormatError(
        fmt::format("{}: is not a JSON object; expected the keys train, valid, test", path));
  }
  std::array<Blend, 3> blends;
  for (const Split split : kSplits) {
    const auto value = file.find(split_name(split));
    if (value == file.end() || value->is_null()) continue;
    blends[static_cast<size_t>(split)] = parse_blend(
        items_of(*value, path, split_name(split)), fmt::format("{}: {}", path, split_name(split)));
  }
  return blends;
}

}  // namespace

Blend parse_blend(std::span<const std::string> items, std::string_view flag) {
  Blend blend;
  if (items.size() == 1) {
    blend.prefixes.push_back(items.front());
    return blend;
  }
  // Weights and prefixes alternate if every other item is a number; otherwise all are prefixes.
  bool weighted = !items.empty() && items.size() % 2 == 0;
  for (size_t i = 0; i < items.size(); i += 2) weighted = weighted && as_number(items[i]);
  if (!weighted) {
    for (const std::string& item : items) {
      if (as_number(item)) {
        throw ConfigError(fmt::format(
            "{}: {} looks like a weight, but weights and prefixes do not alternate; give one "
            "prefix, weight prefix weight prefix ..., or prefixes only",
            flag, item));
      }
      blend.prefixes.push_back(item);
    }
    return blend;
  }
  for (size_t i = 0; i < items.size(); i += 2) {
    const double weight = *as_number(items[i]);
    if (!(weight > 0)) {
      throw ConfigError(
          fmt::format("{}: the weight {} of {} must be positive; leave the dataset "
                      "out if it is not wanted",
                      flag, items[i], items[i + 1]));
    }
    blend.weights.push_back(weight);
    blend.prefixes.push_back(items[i + 1]);
  }
  return blend;
}

DataPaths data_paths(const DataConfig& config) {
  DataPaths paths;
  if (!config.per_split_data_args_path.empty()) {
    paths.per_split = read_per_split(config.per_split_data_args_path);
    return paths;
  }
  if (!config.data_args_path.empty()) {
    paths.all = parse_blend(words_of(read_text(config.data_args_path)), config.data_args_path);
    return paths;
  }
  paths.all = parse_blend(config.data_path, "--data-path");
  paths.per_split = {parse_blend(config.train_data_path, "--train-data-path"),
                     parse_blend(config.valid_data_path, "--valid-data-path"),
                     parse_blend(config.test_data_path, "--test-data-path")};
  return paths;
}

}  // namespace megatron
