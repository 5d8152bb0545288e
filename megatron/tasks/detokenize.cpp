#include "megatron/tasks/detokenize.h"

#include <array>
#include <span>

#include "megatron/tokenizers/unicode_text.h"

namespace megatron {
namespace {

struct Replacement {
  std::string_view from;
  std::string_view to;
};

void replace_all(std::string& text, const Replacement& rule) {
  if (text.find(rule.from) == std::string::npos) return;
  std::string result;
  result.reserve(text.size());
  size_t begin = 0;
  for (size_t at = 0; (at = text.find(rule.from, begin)) != std::string::npos;) {
    result.append(text, begin, at - begin).append(rule.to);
    begin = at + rule.from.size();
  }
  text = result.append(text, begin);
}

void replace_all(std::string& text, std::span<const Replacement> rules) {
  for (const Replacement& rule : rules) replace_all(text, rule);
}

// "( a b )" -> "(a b)", for the pairs of one kind from left to right.
void tighten_pairs(std::string& text, char open, char close) {
  std::string result;
  result.reserve(text.size());
  size_t begin = 0;
  for (;;) {
    const size_t first = text.find(open, begin);
    const size_t last = first == std::string::npos ? first : text.find(close, first + 1);
    if (last == std::string::npos) break;
    result.append(text, begin, first - begin + 1);
    result.append(stripped(std::string_view(text).substr(first + 1, last - first - 1)));
    result.push_back(close);
    begin = last + 1;
  }
  text = result.append(text, begin);
}

// Compat: Megatron-LM core_r0.5.0 has the replacement / '[0-9]/ literally where it means a digit.
void replace_quoted_digits(std::string& text) {
  constexpr std::string_view kWritten = "/'[0-9]/";
  for (size_t at = 0; (at = text.find("/' ", at)) != std::string::npos;) {
    const bool is_digit = at + 4 < text.size() && text[at + 3] >= '0' && text[at + 3] <= '9';
    if (is_digit && text[at + 4] == '/') {
      text.replace(at, 5, kWritten);
      at += kWritten.size();
    } else {
      ++at;
    }
  }
}

constexpr std::array kPennTreebankRules = std::to_array<Replacement>({
    {" '", "'"},
    {" \n", "\n"},
    {"\n ", "\n"},
    {" n't", "n't"},
    {" N ", "1 "},
    {"$ 1", "$1"},
    {"# 1", "#1"},
});

// Before and after the rules for brackets and quotes.
constexpr std::array kWikiTextPunctuation = std::to_array<Replacement>({
    {" @-@ ", "-"},
    {" @,@ ", ","},
    {" @.@ ", "."},
    {" : ", ": "},
    {" ; ", "; "},
    {" . ", ". "},
    {" ! ", "! "},
    {" ? ", "? "},
    {" , ", ", "},
});
constexpr std::array kWikiTextRest = std::to_array<Replacement>({
    {"= = = =", "===="},
    {"= = =", "==="},
    {"= =", "=="},
    {" \u00b0 ", "\u00b0"},
    {" \n", "\n"},
    {"\n ", "\n"},
    {" N ", " 1 "},
    {" 's", "'s"},
});

bool is_python_space(char32_t value) {
  return is_white_space(value) || (value >= 0x1c && value <= 0x1f);
}

}  // namespace

std::string_view stripped(std::string_view text) {
  const std::u32string points = code_points(text);
  size_t first = 0;
  while (first < points.size() && is_python_space(points[first])) ++first;
  size_t last = points.size();
  while (last > first && is_python_space(points[last - 1])) --last;
  const std::u32string_view view(points);
  const size_t before = to_utf8(view.substr(0, first)).size();
  const size_t after = to_utf8(view.substr(last)).size();
  return text.substr(before, text.size() - before - after);
}

std::optional<Detokenizer> detokenizer_of(std::string_view path) {
  const auto has = [&](const char* word) { return path.find(word) != std::string_view::npos; };
  if (has("ptb")) return Detokenizer::kPennTreebank;
  if (has("wiki")) return Detokenizer::kWikiText;
  if (has("lambada")) return Detokenizer::kNone;
  return std::nullopt;
}

std::string detokenized(std::string_view text, Detokenizer rules) {
  std::string result(text);
  switch (rules) {
    case Detokenizer::kNone:
      break;
    case Detokenizer::kPennTreebank:
      replace_all(result, kPennTreebankRules);
      break;
    case Detokenizer::kWikiText:
      replace_all(result, {"s '", "s'"});
      replace_quoted_digits(result);
      replace_all(result, kWikiTextPunctuation);
      tighten_pairs(result, '(', ')');
      tighten_pairs(result, '[', ']');
      tighten_pairs(result, '{', '}');
      tighten_pairs(result, '"', '"');
      tighten_pairs(result, '\'', '\'');
      replace_all(result, kWikiTextRest);
      break;
  }
  return result;
}

}  // namespace megatron
