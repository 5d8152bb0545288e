#include "annex/deepspeed/config_section.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "megatron/core/json.h"
#include "megatron/core/number_text.h"

namespace megatron::frontends {

using nlohmann::json;

std::string ConfigSection::path(const std::string& key) const {
  return name_.empty() ? key : fmt::format("{}.{}", name_, key);
}

void ConfigSection::refuse(const std::string& key, const std::string& rule) {
  problems_.push_back(
      fmt::format("{} is {}; it must be {}", path(key), shortened_json(map_.at(key)), rule));
}

// The value, unless it is absent, null or "auto".
const json* ConfigSection::taken(const std::string& key) {
  taken_.insert(key);
  return has(key) && !is_auto(key) ? &map_.at(key) : nullptr;
}

std::optional<bool> ConfigSection::flag(const std::string& key) {
  const json* const value = taken(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  if (*value == "true" || *value == "True") return true;
  if (*value == "false" || *value == "False") return false;
  refuse(key, "true or false");
  return std::nullopt;
}

std::optional<int64_t> ConfigSection::integer(const std::string& key, int64_t least) {
  const json* const value = taken(key);
  if (value == nullptr) return std::nullopt;
  std::optional<int64_t> number;
  if (value->is_number_integer()) number = value->get<int64_t>();
  if (value->is_string()) number = integer_of(value->get<std::string>());
  constexpr double kExact = 9007199254740992.0;  // integers up to 2^53 are doubles
  if (value->is_number_float() && std::abs(value->get<double>()) <= kExact &&
      std::floor(value->get<double>()) == value->get<double>()) {
    number = static_cast<int64_t>(value->get<double>());
  }
  if (number && *number >= least) return number;
  refuse(key, fmt::format("an integer of at least {}", least));
  return std::nullopt;
}

std::vector<int64_t> ConfigSection::integers(const std::string& key) {
  const json* const value = taken(key);
  if (value == nullptr) return {};
  const bool is_list =
      value->is_array() && std::all_of(value->begin(), value->end(),
                                       [](const json& item) { return item.is_number_integer(); });
  if (is_list) return value->get<std::vector<int64_t>>();
  refuse(key, "a list of integers");
  return {};
}

std::optional<double> ConfigSection::number(const std::string& key, double least) {
  const json* const value = taken(key);
  if (value == nullptr) return std::nullopt;
  std::optional<double> number;
  if (value->is_number()) number = value->get<double>();
  if (value->is_string()) number = number_of(value->get<std::string>());
  if (number && *number >= least) return number;
  refuse(key, fmt::format("a number of at least {}", least));
  return std::nullopt;
}

std::optional<std::string> ConfigSection::word(const std::string& key,
                                               std::initializer_list<const char*> choices) {
  const json* const value = taken(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    refuse(key, "a text");
    return std::nullopt;
  }
  const std::string text = value->get<std::string>();
  if (choices.size() == 0 || std::find(choices.begin(), choices.end(), text) != choices.end()) {
    return text;
  }
  refuse(key, fmt::format("one of {}", fmt::join(choices, ", ")));
  return std::nullopt;
}

ConfigSection ConfigSection::section(const std::string& key) {
  taken_.insert(key);
  if (map_.contains(key) && map_.at(key).is_object()) {
    return {map_.at(key), path(key), problems_};
  }
  if (map_.contains(key)) refuse(key, "a map of keys and values");
  return {json::object(), path(key), problems_};
}

bool ConfigSection::take(const std::string& key) {
  taken_.insert(key);
  return has(key) && map_.at(key) != false;
}

std::vector<std::string> ConfigSection::rest() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : map_.items()) {
    if (!taken_.contains(key)) keys.push_back(path(key));
  }
  return keys;
}

}  // namespace megatron::frontends
