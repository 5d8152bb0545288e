#include "megatron/data/python_json.h"

#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace megatron {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kIndent = 4;

std::string quoted(const Json& text) {
  return text.dump(-1, ' ', true, Json::error_handler_t::replace);
}

// One object or array, one member per line.
void append(std::string& out, const Json& value, size_t depth) {
  if (value.is_number_float()) {
    out += python_repr(value.get<double>());
    return;
  }
  if (!value.is_structured() || value.empty()) {
    out += quoted(value);
    return;
  }
  const std::string indent = '\n' + std::string(kIndent * (depth + 1), ' ');
  out += value.is_object() ? '{' : '[';
  const char* separator = "";
  for (auto member = value.begin(); member != value.end(); ++member) {
    out += separator + indent;
    if (value.is_object()) out += quoted(Json(member.key())) + ": ";
    append(out, *member, depth + 1);
    separator = ",";
  }
  out += '\n' + std::string(kIndent * depth, ' ');
  out += value.is_object() ? '}' : ']';
}

}  // namespace

std::string python_repr(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  const double size = std::fabs(value);
  const bool exponent = size != 0 && (size < 1e-4 || size >= 1e16);
  std::array<char, 64> buffer;
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                    exponent ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(buffer.data(), end);
  if (!exponent && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string python_json(const nlohmann::ordered_json& value) {
  std::string out;
  append(out, value, 0);
  return out;
}

}  // namespace megatron
