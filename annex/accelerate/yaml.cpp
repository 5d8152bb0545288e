#include "annex/accelerate/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "megatron/core/error.h"
#include "megatron/core/number_text.h"
#include "megatron/core/printable.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string without_underscores(std::string_view text) {
  std::string digits(text);
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  return digits;
}

bool has_only(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
}

// The integers of YAML 1.1: 0b1, 0x1F, 017, 1_000. Numbers to base 60 stay text.
std::optional<json> integer_value(std::string_view text) {
  std::string_view digits = text;
  const bool is_negative = digits.starts_with('-');
  if (digits.starts_with('-') || digits.starts_with('+')) digits.remove_prefix(1);
  int base = 10;
  if (digits.starts_with("0b") && has_only(digits.substr(2), "01_")) {
    base = 2;
    digits.remove_prefix(2);
  } else if (digits.starts_with("0x") && has_only(digits.substr(2), "0123456789abcdefABCDEF_")) {
    base = 16;
    digits.remove_prefix(2);
  } else if (digits.size() > 1 && digits[0] == '0' && has_only(digits, "01234567_")) {
    base = 8;
  } else if (!(digits == "0" ||
               (has_only(digits, "0123456789_") && digits[0] != '0' && digits[0] != '_'))) {
    return std::nullopt;
  }
  const std::string plain = without_underscores(digits);
  errno = 0;
  const long long value = std::strtoll(plain.c_str(), nullptr, base);
  if (plain.empty() || errno != 0) return std::nullopt;
  return json(static_cast<int64_t>(is_negative ? -value : value));
}

// The floats of YAML 1.1: a dot is required, and a sign in the exponent.
std::optional<json> float_value(std::string_view text) {
  std::string_view number = text;
  if (number.starts_with('-') || number.starts_with('+')) number.remove_prefix(1);
  const double sign = text.starts_with('-') ? -1.0 : 1.0;
  if (is_one_of(number, {".inf", ".Inf", ".INF"})) {
    return json(sign * std::numeric_limits<double>::infinity());
  }
  if (is_one_of(text, {".nan", ".NaN", ".NAN"})) {
    return json(std::numeric_limits<double>::quiet_NaN());
  }
  const size_t dot = number.find('.');
  if (dot == std::string_view::npos || number.size() < 2) return std::nullopt;
  const size_t exponent = number.find_first_of("eE");
  const std::string_view before = number.substr(0, dot);
  if (!before.empty() && (!is_digit(before[0]) || !has_only(before, "0123456789_"))) {
    return std::nullopt;
  }
  const size_t end = std::min(exponent, number.size());
  if (end < dot) return std::nullopt;
  const std::string_view after = number.substr(dot + 1, end - dot - 1);
  if (!after.empty() && !has_only(after, "0123456789_")) return std::nullopt;
  if (before.empty() && after.empty()) return std::nullopt;
  if (exponent != std::string_view::npos) {
    const std::string_view power = number.substr(exponent + 1);
    if (power.size() < 2 || (power[0] != '-' && power[0] != '+') ||
        !has_only(power.substr(1), "0123456789")) {
      return std::nullopt;
    }
  }
  return json(sign * std::strtod(without_underscores(number).c_str(), nullptr));
}

json plain_value(const std::string& text) {
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (is_one_of(text, {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})) return true;
  if (is_one_of(text, {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})) {
    return false;
  }
  if (const std::optional<json> value = integer_value(text)) return *value;
  if (const std::optional<json> value = float_value(text)) return *value;
  return text;
}

// Aliases of aliases could make billions of values of a short text.
constexpr int64_t kMaxYamlValues = 1'000'000;
// The library takes more than 100 bytes for a byte.
constexpr size_t kMaxYamlBytes = 1 << 20;

json value_of(const YAML::Node& node, int64_t& num_values) {
  if (++num_values > kMaxYamlValues) {
    throw YAML::Exception(node.Mark(), fmt::format("more than {} values", kMaxYamlValues));
  }
  switch (node.Type()) {
    case YAML::NodeType::Map: {
      json map = json::object();
      for (const auto& entry : node) map[entry.first.Scalar()] = value_of(entry.second, num_values);
      return map;
    }
    case YAML::NodeType::Sequence: {
      json list = json::array();
      for (const YAML::Node& item : node) list.push_back(value_of(item, num_values));
      return list;
    }
    case YAML::NodeType::Scalar:
      return node.Tag() == "!" ? json(node.Scalar()) : plain_value(node.Scalar());  // "!": quoted
    case YAML::NodeType::Null:
    case YAML::NodeType::Undefined:
      return nullptr;
  }
  return nullptr;
}

// True if PyYAML writes the text without quotes, judging by its characters.
bool is_plain(const std::string& text) {
  if (text.empty() || text.front() == ' ' || text.back() == ' ') return false;
  if (text.starts_with("---") || text.starts_with("...")) return false;
  if (std::string_view("#,[]{}&*!|>'\"%@`").find(text[0]) != std::string_view::npos) return false;
  const auto ends_word = [&](size_t at) { return at >= text.size() || text[at] == ' '; };
  if ((text[0] == '-' || text[0] == '?') && ends_word(1)) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ':' && ends_word(i + 1)) return false;
    if (text[i] == '#' && i > 0 && text[i - 1] == ' ') return false;
  }
  return true;
}

// Tab counts as special, too: YAML does not allow it everywhere.
bool has_special_characters(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return c < ' ' || c == 127; });
}

std::string quoted(const std::string& text) {
  if (has_special_characters(text)) {  // JSON's escapes are YAML's
    return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  }
  if (is_plain(text) && plain_value(text).is_string() && text != "=" && text != "<<") return text;
  std::string result = "'";
  for (const char c : text) {
    result += c;
    if (c == '\'') result += c;
  }
  return result + "'";
}

// PyYAML writes a dot into a mantissa that has none: 1e-05 would read as text.
std::string float_text(double value) {
  std::string text = python_repr(value);
  if (text == "inf" || text == "-inf" || text == "nan") {
    return text == "-inf" ? "-.inf" : "." + text;
  }
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) {
    text.insert(exponent, ".0");
  }
  return text;
}

std::string scalar_text(const json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number_float()) return float_text(value.get<double>());
  if (value.is_string()) return quoted(value.get<std::string>());
  return value.dump();  // integers, and {} and []
}

void append(std::string& text, const json& value, int indent) {
  const std::string margin(static_cast<size_t>(indent), ' ');
  if (value.is_array()) {
    for (const json& item : value) text += fmt::format("{}- {}\n", margin, scalar_text(item));
    return;
  }
  for (const auto& [key, entry] : value.items()) {
    if (entry.is_structured() && !entry.empty()) {
      text += fmt::format("{}{}:\n", margin, quoted(key));
      append(text, entry, entry.is_array() ? indent : indent + 2);
    } else {
      text += fmt::format("{}{}: {}\n", margin, quoted(key), scalar_text(entry));
    }
  }
}

}  // namespace

json read_yaml(const std::string& text, const std::string& source) {
  if (text.size() > kMaxYamlBytes) {
    throw FormatError(fmt::format("{}: has {} bytes, at most {} are read; is this the right file?",
                                  source, text.size(), kMaxYamlBytes));
  }
  if (const size_t valid = utf8_prefix(text); valid < text.size()) {
    throw FormatError(fmt::format("{}: byte {} is not UTF-8; correct the YAML", source, valid + 1));
  }
  try {
    int64_t num_values = 0;
    return value_of(YAML::Load(text), num_values);
  } catch (const YAML::Exception& error) {
    throw FormatError(fmt::format("{}: line {}, column {}: {}; correct the YAML", source,
                                  error.mark.line + 1, error.mark.column + 1, error.msg));
  }
}

std::string yaml_text(const json& value) {
  if (!value.is_structured() || value.empty()) return scalar_text(value) + "\n";
  std::string text;
  append(text, value, 0);
  return text;
}

}  // namespace megatron::frontends
