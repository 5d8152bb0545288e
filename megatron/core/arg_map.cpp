#include "megatron/core/arg_map.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace megatron {
namespace {

// Python marks every float as one: 1.0, 1e-05, inf.
std::string python_float(double value) {
  std::string text = fmt::format("{}", value);
  const bool looks_integral = text.find_first_of(".en") == std::string::npos;
  return std::isfinite(value) && looks_integral ? text + ".0" : text;
}

// Python prefers single quotes and escapes the quote itself and backslashes.
std::string python_quoted(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const bool has_double = text.find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string quoted(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + quote;
}

struct TextOf {
  std::string operator()(std::monostate) const { return "None"; }
  std::string operator()(bool value) const { return value ? "True" : "False"; }
  std::string operator()(int64_t value) const { return fmt::format("{}", value); }
  std::string operator()(double value) const { return python_float(value); }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(DType value) const { return fmt::format("torch.{}", name_of(value)); }
  std::string operator()(const std::vector<int64_t>& values) const {
    return fmt::format("[{}]", fmt::join(values, ", "));
  }
  std::string operator()(const std::vector<std::string>& values) const {
    std::vector<std::string> quoted;
    quoted.reserve(values.size());
    for (const std::string& value : values) quoted.push_back(python_quoted(value));
    return fmt::format("[{}]", fmt::join(quoted, ", "));
  }
};

}  // namespace

std::string text_of(const ArgValue& value) { return std::visit(TextOf{}, value); }

}  // namespace megatron
