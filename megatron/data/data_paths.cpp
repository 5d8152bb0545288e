#include "megatron/data/data_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/core/json.h"
#include "megatron/core/number_text.h"
#include "megatron/data/indexed_dataset.h"

namespace megatron {
namespace {

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
                                    split, shortened_json(item)));
    }
  }
  return items;
}

// The blends of a split.
std::vector<Blend> blends_of(Split split, std::span<const std::string> items, std::string_view flag,
                             const DataConfig& config) {
  if (split == Split::kValid && config.multiple_validation_sets) {
    return separate_blends(items, config.validation_set_names, flag);
  }
  if (split != Split::kTrain) return parse_blends(items, flag);
  if (items.empty()) return {};
  return {parse_blend(items, flag)};
}

std::array<std::vector<Blend>, 3> read_per_split(const DataConfig& config) {
  const std::string& path = config.per_split_data_args_path;
  const nlohmann::json file = parse_json(read_text(path), {}, path);
  if (!file.is_object()) {
    throw FormatError(
        fmt::format("{}: is not a JSON object; expected the keys train, valid, test", path));
  }
  std::array<std::vector<Blend>, 3> blends;
  for (const Split split : kSplits) {
    const auto value = file.find(split_name(split));
    if (value == file.end() || value->is_null()) continue;
    blends[static_cast<size_t>(split)] =
        blends_of(split, items_of(*value, path, split_name(split)),
                  fmt::format("{}: {}", path, split_name(split)), config);
  }
  return blends;
}

// "0:0.95": a part of the documents, as fractions.
std::optional<SplitBounds> part_of(const std::string& word) {
  const size_t colon = word.find(':');
  if (colon == std::string::npos) return std::nullopt;
  const auto lower = number_of(std::string_view(word).substr(0, colon));
  const auto upper = number_of(std::string_view(word).substr(colon + 1));
  if (!lower || !upper || !(0 <= *lower && *lower < *upper && *upper <= 1)) return std::nullopt;
  return SplitBounds{*lower, *upper};
}

bool is_group_name(const std::string& word) { return word.size() > 1 && word.back() == ':'; }

// The items of a weighted group: its name, then weight, part and prefix, repeated, separated by
// commas.
Blend weighted_group(std::span<const std::string> words, std::string_view flag) {
  const auto fail = [&](const std::string& what) {
    throw ConfigError(fmt::format(
        "{}: {}; write \"NAME: weight start:end prefix, weight start:end prefix ...\", with start "
        "and end between 0 and 1",
        flag, what));
  };
  Blend blend;
  blend.name = words.front().substr(0, words.front().size() - 1);
  words = words.subspan(1);
  if (words.empty()) fail(fmt::format("the group {} has no dataset", blend.name));
  for (size_t i = 0; i < words.size(); i += 3) {
    const auto weight = number_of(words[i]);
    if (!weight || !(*weight > 0)) fail(fmt::format("{} is not a positive weight", words[i]));
    if (i + 2 >= words.size()) fail(fmt::format("the prefix after {} is missing", words.back()));
    const auto part = part_of(words[i + 1]);
    if (!part) fail(fmt::format("{} is not a part of a dataset", words[i + 1]));
    std::string prefix = words[i + 2];
    const bool is_last = i + 3 == words.size();
    if (!is_last && prefix.back() != ',') fail(fmt::format("a comma is missing after {}", prefix));
    if (prefix.back() == ',') prefix.pop_back();
    if (prefix.empty()) fail("a prefix is empty");
    blend.prefixes.push_back(std::move(prefix));
    blend.weights.push_back(*weight);
    blend.parts.push_back(*part);
  }
  return blend;
}

// The weighted groups, if the items begin with a group's name; one quoted argument may hold many
// items.
std::vector<Blend> groups_of(std::span<const std::string> items, std::string_view flag) {
  std::vector<std::string> words;
  for (const std::string& item : items) {
    for (std::string& word : words_of(item)) words.push_back(std::move(word));
  }
  if (words.empty() || !is_group_name(words.front())) return {};
  std::vector<Blend> groups;
  for (auto begin = words.begin(); begin != words.end();) {
    const auto end = std::find_if(begin + 1, words.end(), is_group_name);
    Blend group = weighted_group({begin, end}, flag);
    const bool is_known = std::any_of(groups.begin(), groups.end(),
                                      [&](const Blend& other) { return other.name == group.name; });
    if (is_known) {
      throw ConfigError(fmt::format(
          "{}: two groups have the name {}; each needs its own, under which it is logged", flag,
          group.name));
    }
    groups.push_back(std::move(group));
    begin = end;
  }
  return groups;
}

}  // namespace

Blend parse_blend(std::span<const std::string> items, std::string_view flag) {
  std::vector<Blend> groups = groups_of(items, flag);
  if (groups.size() > 1) {
    throw ConfigError(
        fmt::format("{}: {} groups; training reads one blend, so put their datasets into one group",
                    flag, groups.size()));
  }
  if (!groups.empty()) return std::move(groups.front());
  Blend blend;
  if (items.size() == 1) {
    blend.prefixes.push_back(items.front());
    return blend;
  }
  // Weights and prefixes alternate if every other item is a number; otherwise all are prefixes.
  bool weighted = !items.empty() && items.size() % 2 == 0;
  for (size_t i = 0; i < items.size(); i += 2) weighted = weighted && number_of(items[i]);
  if (!weighted) {
    for (const std::string& item : items) {
      if (number_of(item)) {
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
    const double weight = *number_of(items[i]);
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

std::vector<Blend> parse_blends(std::span<const std::string> items, std::string_view flag) {
  if (items.empty()) return {};
  std::vector<Blend> groups = groups_of(items, flag);
  if (groups.empty()) groups.push_back(parse_blend(items, flag));
  return groups;
}

std::vector<Blend> separate_blends(std::span<const std::string> items,
                                   std::span<const std::string> names, std::string_view flag) {
  const Blend all = parse_blend(items, flag);
  if (!all.weights.empty()) {
    throw ConfigError(fmt::format(
        "{}: the datasets have weights, but with --multiple-validation-sets each is evaluated "
        "apart; give their prefixes alone",
        flag));
  }
  if (!names.empty() && names.size() != all.prefixes.size()) {
    throw ConfigError(fmt::format("--validation-set-names: {} names for the {} datasets of {}",
                                  names.size(), all.prefixes.size(), flag));
  }
  std::vector<Blend> blends;
  for (size_t i = 0; i < all.prefixes.size(); ++i) {
    const std::string& prefix = all.prefixes[i];
    Blend blend;
    blend.name = names.empty() ? prefix.substr(prefix.rfind('/') + 1) : names[i];
    blend.prefixes = {prefix};
    for (const Blend& other : blends) {
      if (other.name != blend.name) continue;
      throw ConfigError(
          fmt::format("{}: {} and {} would both be logged as {}; give --validation-set-names", flag,
                      other.prefixes.front(), prefix, blend.name));
    }
    blends.push_back(std::move(blend));
  }
  return blends;
}

DataPaths data_paths(const DataConfig& config) {
  DataPaths paths;
  if (!config.per_split_data_args_path.empty()) {
    paths.per_split = read_per_split(config);
    return paths;
  }
  if (!config.data_args_path.empty()) {
    paths.all = parse_blend(words_of(read_text(config.data_args_path)), config.data_args_path);
    return paths;
  }
  paths.all = parse_blend(config.data_path, "--data-path");
  paths.per_split = {blends_of(Split::kTrain, config.train_data_path, "--train-data-path", config),
                     blends_of(Split::kValid, config.valid_data_path, "--valid-data-path", config),
                     blends_of(Split::kTest, config.test_data_path, "--test-data-path", config)};
  return paths;
}

std::vector<std::string> path_problems(const DataConfig& config, bool evaluates) {
  std::vector<std::string> found;
  try {
    const DataPaths paths = data_paths(config);
    std::set<std::string> prefixes(paths.all.prefixes.begin(), paths.all.prefixes.end());
    for (const Split split : kSplits) {
      if (split != Split::kTrain && !evaluates) continue;
      for (const Blend& blend : paths.per_split[static_cast<size_t>(split)]) {
        prefixes.insert(blend.prefixes.begin(), blend.prefixes.end());
      }
    }
    for (const std::string& prefix : prefixes) {
      if (std::optional<std::string> missing = missing_file_problem(prefix)) {
        found.push_back(std::move(*missing));
      }
    }
  } catch (const Error& error) {
    found.emplace_back(error.what());
  }
  return found;
}

}  // namespace megatron
