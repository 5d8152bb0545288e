#include "megatron/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "megatron/core/printable.h"
#include "megatron/jinja/text.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::jinja {
namespace {

// Line ends become '\n'; one at the end of the template is dropped.
std::string with_plain_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool is_digit_byte(char c) { return c >= '0' && c <= '9'; }

int64_t num_lines(std::string_view text) { return std::count(text.begin(), text.end(), '\n'); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_newlines(with_valid_utf8(source))) {}

  std::vector<Token> tokens() {
    while (!rest().empty()) read_text();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool goes_on_with(std::string_view text) const { return rest().starts_with(text); }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void skip(size_t length) {
    line_ += num_lines(rest().substr(0, length));
    at_ += length;
  }
  void skip_space() { skip(rest().size() - stripped(rest(), {}, true, false).size()); }

  void add_text(std::string_view text) {
    if (!text.empty()) add(TokenKind::kText, std::string(text));
  }

  // Text to the next tag, which decides whether white space before it is kept, and that tag.
  void read_text() {
    size_t length = 0;
    for (length = rest().find('{'); length != std::string_view::npos;
         length = rest().find('{', length + 1)) {
      const char next = length + 1 < rest().size() ? rest()[length + 1] : ' ';
      if (next == '{' || next == '%' || next == '#') break;
    }
    if (length == std::string_view::npos) {
      add_text(rest());
      skip(rest().size());
      return;
    }
    std::string_view text = rest().substr(0, length);
    const char kind = rest()[length + 1];
    const char sign = length + 2 < rest().size() ? rest()[length + 2] : ' ';
    const std::string kept(text_before(text, kind, sign));
    add_text(kept);
    skip(length + 2);
    if (sign == '-' || sign == '+') skip(1);
    switch (kind) {
      case '#':
        return read_comment();
      case '{':
        add(TokenKind::kOutputBegin, "{{");
        return read_code("}}", TokenKind::kOutputEnd);
      default:
        if (skips_raw_begin()) return read_raw();
        add(TokenKind::kTagBegin, "{%");
        return read_code("%}", TokenKind::kTagEnd);
    }
  }

  // The part of the text before a tag that is kept.
  std::string_view text_before(std::string_view text, char kind, char sign) const {
    if (sign == '-') return stripped(text, {}, false, true);
    if (sign == '+' || kind == '{') return text;
    const size_t newline = text.rfind('\n');
    if (newline == std::string_view::npos && !begins_line_) return text;
    const size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
    return stripped(text.substr(begin)).empty() ? text.substr(0, begin) : text;
  }

  // Skips the end of a tag, "%}", with its sign and the white space after it that goes.
  bool skips_end(std::string_view end) {
    const std::string_view begin = rest();
    const bool has_sign = begin.starts_with('-') || (begin.starts_with('+') && end != "}}");
    if (!begin.substr(has_sign ? 1 : 0).starts_with(end)) return false;
    const char sign = has_sign ? begin.front() : ' ';
    skip(end.size() + (has_sign ? 1 : 0));
    if (sign == '-') skip_space();
    if (sign == ' ' && end != "}}" && goes_on_with("\n")) skip(1);
    begins_line_ = source_[at_ - 1] == '\n';
    return true;
  }

  void read_comment() {
    const int64_t line = line_;
    for (; !rest().empty(); skip(1)) {
      if (skips_end("#}")) return;
    }
    fail_at(line, "the comment does not end; add #}");
  }

  // Skips "raw %}" after "{%". Its newline is kept.
  bool skips_raw_begin() {
    std::string_view code = stripped(rest(), {}, true, false);
    if (!code.starts_with("raw")) return false;
    code = stripped(code.substr(3), {}, true, false);
    const bool strips = code.starts_with('-');
    if (!code.substr(strips ? 1 : 0).starts_with("%}")) return false;
    code.remove_prefix(strips ? 3 : 2);
    skip(rest().size() - code.size());
    if (strips) skip_space();
    begins_line_ = source_[at_ - 1] == '\n';
    return true;
  }

  void read_raw() {
    const size_t begin = at_;
    const int64_t line = line_;
    for (size_t at = source_.find("{%", at_); at != std::string::npos;
         at = source_.find("{%", at + 1)) {
      const char sign = at + 2 < source_.size() ? source_[at + 2] : ' ';
      std::string_view code = std::string_view(source_).substr(at + 2);
      if (sign == '-' || sign == '+') code.remove_prefix(1);
      code = stripped(code, {}, true, false);
      if (!code.starts_with("endraw")) continue;
      code = stripped(code.substr(6), {}, true, false);
      const std::string text = source_.substr(begin, at - begin);
      add_text(text_before(text, '%', sign));
      skip(rest().size() - code.size());
      if (!skips_end("%}")) fail_at(line_, "endraw must be followed by %}");
      return;
    }
    fail_at(line, "raw does not end; add {% endraw %}");
  }

  void read_code(std::string_view end, TokenKind end_kind) {
    const int64_t line = line_;
    std::string open;  // brackets
    for (;;) {
      skip_space();
      if (rest().empty()) {
        fail_at(line, fmt::format("{} does not end; add {}", end == "}}" ? "{{" : "{%", end));
      }
      if (open.empty()) {
        const int64_t end_line = line_;
        if (skips_end(end)) {
          tokens_.push_back({end_kind, std::string(end), end_line});
          return;
        }
      }
      const char c = rest().front();
      if (c == '"' || c == '\'') {
        read_string(c);
      } else if (is_digit_byte(c)) {
        read_number();
      } else if (is_word_character(first().value)) {
        size_t length = 0;
        while (length < rest().size()) {
          const CodePoint next = decode_utf8(rest().data() + length, rest().data() + rest().size());
          if (!is_word_character(next.value)) break;
          length += static_cast<size_t>(next.length);
        }
        add(TokenKind::kName, std::string(rest().substr(0, length)));
        skip(length);
      } else {
        read_operator(open);
      }
    }
  }

  CodePoint first() const { return decode_utf8(rest().data(), rest().data() + rest().size()); }

  void read_operator(std::string& open) {
    constexpr std::array<std::string_view, 6> kLong = {"**", "//", "==", "!=", ">=", "<="};
    for (const std::string_view sign : kLong) {
      if (!goes_on_with(sign)) continue;
      add(TokenKind::kOperator, std::string(sign));
      skip(2);
      return;
    }
    const char c = rest().front();
    if (std::string_view("+-/*%~[]()<>=.:|,;{}").find(c) == std::string_view::npos) {
      fail_at(line_, fmt::format("the character {} is not allowed in an expression",
                                 shortened(rest().substr(0, static_cast<size_t>(first().length)))));
    }
    const size_t opening = std::string_view("([{").find(c);
    const size_t closing = std::string_view(")]}").find(c);
    if (opening != std::string_view::npos) open += ")]}"[opening];
    if (closing != std::string_view::npos) {
      if (open.empty()) fail_at(line_, fmt::format("{} closes nothing", c));
      if (open.back() != c)
        fail_at(line_, fmt::format("{} stands where {} is due", c, open.back()));
      open.pop_back();
    }
    add(TokenKind::kOperator, std::string(1, c));
    skip(1);
  }

  void read_number() {
    const auto is_in_number = [&](char c) {
      return c == '_' || is_digit_byte(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    };
    const auto digits_from = [&](size_t at) {
      while (at < rest().size() && (is_digit_byte(rest()[at]) || rest()[at] == '_')) ++at;
      return at;
    };
    const auto is_digit_at = [&](size_t at) {
      return at < rest().size() && is_digit_byte(rest()[at]);
    };
    TokenKind kind = TokenKind::kInteger;
    size_t length = digits_from(0);
    const char base = length == 1 && rest().size() > 1 && rest()[0] == '0'
                          ? static_cast<char>(rest()[1] | 0x20)
                          : ' ';
    // After a dot, "1.5" is an index and an index: a.1.5.
    const bool follows_dot = !tokens_.empty() && tokens_.back().is(TokenKind::kOperator, ".");
    if (base == 'x' || base == 'b' || base == 'o') {
      while (length < rest().size() && is_in_number(rest()[length])) ++length;
    } else if (!follows_dot) {
      if (length < rest().size() && rest()[length] == '.' && is_digit_at(length + 1)) {
        kind = TokenKind::kFloat;
        length = digits_from(length + 1);
      }
      if (length < rest().size() && (rest()[length] | 0x20) == 'e') {
        const bool has_sign =
            length + 1 < rest().size() && (rest()[length + 1] == '+' || rest()[length + 1] == '-');
        if (is_digit_at(length + (has_sign ? 2 : 1))) {
          kind = TokenKind::kFloat;
          length = digits_from(length + (has_sign ? 2 : 1));
        }
      }
    }
    std::string text(rest().substr(0, length));
    std::erase(text, '_');
    add(kind, std::move(text));
    skip(length);
  }

  void read_string(char quote) {
    const int64_t line = line_;
    std::string text;
    size_t at = 1;
    const std::string_view source = rest();
    while (at < source.size() && source[at] != quote) {
      if (source[at] != '\\' || at + 1 == source.size()) {
        text += source[at++];
      } else {
        at = after_escape(source, at + 1, text);
      }
    }
    if (at >= source.size()) fail_at(line, "a string does not end");
    tokens_.push_back({TokenKind::kString, std::move(text), line});
    skip(at + 1);
  }

  // Appends the character of an escape, as Python's unicode-escape codec reads it.
  size_t after_escape(std::string_view source, size_t at, std::string& text) const {
    const char c = source[at++];
    constexpr std::string_view kNames = "abfnrtv\\'\"";
    constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t place = kNames.find(c); place != std::string_view::npos) {
      text += kValues[place];
    } else if (c == '\n') {  // continues the line
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t length = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const char32_t value = number_at(source, at, length, 16);
      append_utf8(text, value);
      at += length;
    } else if (c >= '0' && c <= '7') {
      size_t length = 1;
      while (length < 3 && at - 1 + length < source.size() && source[at - 1 + length] >= '0' &&
             source[at - 1 + length] <= '7') {
        ++length;
      }
      append_utf8(text, number_at(source, at - 1, length, 8));
      at += length - 1;
    } else if (c == 'N') {
      fail_at(line_, "\\N{..} in a string is not supported; write \\u and four hexadecimal digits");
    } else {
      text += '\\';
      text += c;
    }
    return at;
  }

  char32_t number_at(std::string_view source, size_t at, size_t length, uint32_t base) const {
    uint32_t value = 0;
    for (size_t i = at; i < at + length; ++i) {
      const char c = i < source.size() ? static_cast<char>(source[i] | 0x20) : ' ';
      const bool is_letter = c >= 'a' && c <= 'f';
      if (i >= source.size() || (!is_digit_byte(source[i]) && !is_letter)) {
        fail_at(line_, fmt::format("an escape in a string needs {} digits", length));
      }
      value = value * base + static_cast<uint32_t>(is_letter ? c - 'a' + 10 : source[i] - '0');
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      fail_at(line_, fmt::format("U+{:04X} is not a character", value));
    }
    return value;
  }

  std::string source_;
  size_t at_ = 0;
  int64_t line_ = 1;
  bool begins_line_ = true;  // the last tag ended with a newline that belongs to it
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) { return Lexer(source).tokens(); }

void fail_at(int64_t line, const std::string& problem) {
  throw TemplateError(fmt::format("line {}: {}", line, problem));
}

}  // namespace megatron::jinja
