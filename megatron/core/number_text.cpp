#include "megatron/core/number_text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace megatron {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "1_000" -> "1000". A word with a misplaced '_' stays unchanged, so it is not a number.
std::string without_grouping(std::string_view word) {
  std::string digits;
  for (size_t i = 0; i < word.size(); ++i) {
    if (word[i] != '_') {
      digits += word[i];
    } else if (i == 0 || i + 1 == word.size() || !is_digit(word[i - 1]) || !is_digit(word[i + 1])) {
      return std::string(word);
    }
  }
  return digits;
}

template <class Number>
std::optional<Number> parsed(std::string_view typed) {
  const std::string plain = without_grouping(typed);
  std::string_view word = plain;
  if (word.size() > 1 && word.front() == '+' && word[1] != '-') word.remove_prefix(1);
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<int64_t> integer_of(std::string_view word) { return parsed<int64_t>(word); }
std::optional<double> number_of(std::string_view word) { return parsed<double>(word); }

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

}  // namespace megatron
