#include "megatron/data/python_json.h"

#include <nlohmann/json.hpp>

#include "megatron/core/number_text.h"

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

std::string python_json(const nlohmann::ordered_json& value) {
  std::string out;
  append(out, value, 0);
  return out;
}

}  // namespace megatron
