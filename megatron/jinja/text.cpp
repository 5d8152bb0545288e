#include "megatron/jinja/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "megatron/jinja/value.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::jinja {
namespace {

bool is_cased(char32_t c) { return is_upper_case(c) || is_lower_case(c); }
bool is_alphanumeric(char32_t c) { return is_letter(c) || is_number(c); }
// Isdigit also holds for digits in circles and superscripts, which are not Nd; only the latter
// occur.
bool is_digit(char32_t c) {
  return is_decimal_digit(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 ||
         (c >= 0x2070 && c <= 0x2089 && c != 0x2071);
}

std::u32string lower(std::u32string_view text) { return lower_case_in_context(text); }

// Where a line of str.splitlines ends.
bool ends_line(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

// The length in bytes of the character that ends at `end`.
size_t last_length(std::string_view text) {
  size_t length = 1;
  while (length < text.size() && (text[text.size() - length] & 0xC0) == 0x80) ++length;
  return length;
}

CodePoint first_of(std::string_view text) {
  return decode_utf8(text.data(), text.data() + text.size());
}
CodePoint last_of(std::string_view text) {
  return first_of(text.substr(text.size() - last_length(text)));
}

std::vector<std::string> split_at_spaces(std::string_view text, int64_t most, bool from_right) {
  std::vector<std::string> words;
  for (;;) {
    text = stripped(text, {}, !from_right, from_right);
    if (text.empty()) return words;
    if (std::ssize(words) == most) {
      words.emplace_back(text);  // only the side that was split at loses its white space
      return words;
    }
    size_t length = 0;
    while (length < text.size()) {
      const std::string_view rest =
          from_right ? text.substr(0, text.size() - length) : text.substr(length);
      const CodePoint c = from_right ? last_of(rest) : first_of(rest);
      if (is_space(c.value)) break;
      length += static_cast<size_t>(c.length);
    }
    if (from_right) {
      words.emplace_back(text.substr(text.size() - length));
      text.remove_suffix(length);
    } else {
      words.emplace_back(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
}

bool satisfies_case(std::u32string_view text, bool upper_one) {
  bool has_cased = false;
  for (const char32_t c : text) {
    if (upper_one ? is_lower_case(c) : is_upper_case(c)) return false;
    has_cased = has_cased || is_cased(c);
  }
  return has_cased;
}

bool is_title(std::u32string_view text) {
  bool has_cased = false;
  bool follows_cased = false;
  for (const char32_t c : text) {
    if (is_upper_case(c) && follows_cased) return false;
    if (is_lower_case(c) && !follows_cased) return false;
    follows_cased = is_cased(c);
    has_cased = has_cased || follows_cased;
  }
  return has_cased;
}

bool is_identifier(std::u32string_view text) {
  return !text.empty() && !is_decimal_digit(text.front()) &&
         std::all_of(text.begin(), text.end(), is_word_character);
}

}  // namespace

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_space(char32_t value) { return is_white_space(value) || (value >= 0x1C && value <= 0x1F); }

std::string_view stripped(std::string_view text, std::optional<std::string_view> characters,
                          bool left, bool right) {
  std::u32string set;
  if (characters) set = code_points(*characters);
  const auto goes = [&](char32_t c) {
    return characters ? set.find(c) != std::u32string::npos : is_space(c);
  };
  while (left && !text.empty()) {
    const CodePoint c = first_of(text);
    if (!goes(c.value)) break;
    text.remove_prefix(static_cast<size_t>(c.length));
  }
  while (right && !text.empty()) {
    const CodePoint c = last_of(text);
    if (!goes(c.value)) break;
    text.remove_suffix(static_cast<size_t>(c.length));
  }
  return text;
}

std::string upper(std::string_view text) { return to_utf8(upper_case(code_points(text))); }
std::string lower(std::string_view text) { return to_utf8(lower(code_points(text))); }

std::string capitalized(std::string_view text) {
  if (text.empty()) return {};
  const auto first = static_cast<size_t>(first_of(text).length);
  return upper(text.substr(0, first)) + to_utf8(lower(code_points(text)).substr(1));
}

std::string swapped_case(std::string_view text) {
  std::u32string swapped;
  for (const char32_t c : code_points(text)) {
    const std::u32string_view one(&c, 1);
    swapped += is_upper_case(c) ? lower_case(one) : upper_case(one);
  }
  return to_utf8(swapped);
}

std::string title(std::string_view text) {
  std::u32string titled;
  bool follows_cased = false;
  for (const char32_t c : code_points(text)) {
    const std::u32string_view one(&c, 1);
    titled += follows_cased ? lower_case(one) : upper_case(one);
    follows_cased = is_cased(c);
  }
  return to_utf8(titled);
}

std::string slice(std::string_view text, int64_t begin, int64_t end, int64_t step) {
  std::string taken;
  if (is_ascii(text)) {
    if (step == 1) {
      if (begin < end) {
        taken = text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      }
      return taken;
    }
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
      taken += text[static_cast<size_t>(i)];
    }
    return taken;
  }
  const std::u32string points = code_points(text);
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    append_utf8(taken, points[static_cast<size_t>(i)]);
  }
  return taken;
}

int64_t find(std::string_view text, std::string_view part, int64_t begin, int64_t end,
             bool is_last) {
  if (begin > end) return -1;
  const std::string range = slice(text, begin, end, 1);
  const size_t at = is_last ? range.rfind(part) : range.find(part);
  if (at == std::string::npos) return -1;
  return begin + num_characters(std::string_view(range).substr(0, at));
}

int64_t count(std::string_view text, std::string_view part) {
  if (part.empty()) return num_characters(text) + 1;
  int64_t found = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) {
    ++found;
  }
  return found;
}

std::vector<std::string> split(std::string_view text, std::optional<std::string_view> separator,
                               int64_t most_splits, bool from_right) {
  if (most_splits < 0) most_splits = kNoLimit;
  std::vector<std::string> parts;
  if (!separator) {
    parts = split_at_spaces(text, most_splits, from_right);
  } else {
    if (separator->empty()) throw Fault("empty separator");
    while (std::ssize(parts) < most_splits) {
      const size_t at = from_right ? text.rfind(*separator) : text.find(*separator);
      if (at == std::string_view::npos) break;
      const size_t after = at + separator->size();
      parts.emplace_back(from_right ? text.substr(after) : text.substr(0, at));
      text = from_right ? text.substr(0, at) : text.substr(after);
    }
    parts.emplace_back(text);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = first_of(text.substr(at));
    size_t after = at + static_cast<size_t>(c.length);
    if (ends_line(c.value)) {
      if (c.value == '\r' && after < text.size() && text[after] == '\n') ++after;
      lines.emplace_back(text.substr(begin, (keep_ends ? after : at) - begin));
      begin = after;
    }
    at = after;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to,
                     int64_t most) {
  if (most < 0) most = kNoLimit;
  std::string result;
  size_t at = 0;
  for (int64_t done = 0; done < most; ++done) {
    require_size(std::ssize(result));
    if (from.empty()) {  // before each character, and at the end
      if (done > 0) {
        if (at == text.size()) return result;
        const auto length = static_cast<size_t>(first_of(text.substr(at)).length);
        result += text.substr(at, length);
        at += length;
      }
      result += to;
      continue;
    }
    const size_t place = text.find(from, at);
    if (place == std::string_view::npos) break;
    result += text.substr(at, place - at);
    result += to;
    at = place + from.size();
  }
  result += text.substr(at);
  return result;
}

std::string padded(std::string_view text, int64_t width, char side, std::string_view fill) {
  const int64_t missing = width - num_characters(text);
  if (missing <= 0) return std::string(text);
  require_size(missing);
  // str.center puts the odd one to the left if the width is odd.
  int64_t left = 0;
  if (side == '>') left = missing;
  if (side == '^') left = missing / 2 + (missing & width & 1);
  std::string result;
  for (int64_t i = 0; i < left; ++i) result += fill;
  result += text;
  for (int64_t i = left; i < missing; ++i) result += fill;
  return result;
}

void append_quoted(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (const char32_t c : code_points(text)) {
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      append_utf8(out, c);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  out += quote;
}

std::optional<bool> satisfies(std::string_view text, std::string_view method) {
  const std::u32string points = code_points(text);
  if (method == "isupper") return satisfies_case(points, true);
  if (method == "islower") return satisfies_case(points, false);
  if (method == "istitle") return is_title(points);
  if (method == "isidentifier") return is_identifier(points);
  if (method == "isascii") return is_ascii(text);
  using Rule = bool (*)(char32_t);
  constexpr std::array<std::pair<std::string_view, Rule>, 7> kRules = {
      {{"isspace", is_space},
       {"isalpha", is_letter},
       {"isalnum", is_alphanumeric},
       {"isdigit", is_digit},
       {"isdecimal", is_decimal_digit},
       {"isnumeric", is_number},
       {"isprintable", is_printable}}};
  for (const auto& [name, rule] : kRules) {
    if (name != method) continue;
    const bool may_be_empty = name == "isprintable";
    return (may_be_empty || !points.empty()) && std::all_of(points.begin(), points.end(), rule);
  }
  return std::nullopt;
}

}  // namespace megatron::jinja
