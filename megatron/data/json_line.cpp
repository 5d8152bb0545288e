#include "megatron/data/json_line.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "megatron/tokenizers/ascii_block.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron {
namespace {

static_assert(JsonLineParser::kPadding >= simdjson::SIMDJSON_PADDING);
static_assert(JsonLineParser::kPadding >= AsciiBlock::kBytes);

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// True if the bytes contain a surrogate encoded as in UTF-8.
bool has_surrogate(std::string_view text) {
  for (size_t i = text.find('\xED'); i != std::string_view::npos; i = text.find('\xED', i + 1)) {
    if (i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) >= 0xA0) return true;
  }
  return false;
}

bool is_surrogate(char32_t c) { return c >= 0xD800 && c <= 0xDFFF; }

struct Problem {
  std::string text;
};

// The character of an escape letter after a backslash; 0: invalid.
constexpr std::array<char, 256> kEscapes = [] {
  std::array<char, 256> escapes{};
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  for (size_t i = 0; i < kNames.size(); ++i) escapes[static_cast<uint8_t>(kNames[i])] = kValues[i];
  return escapes;
}();

// The value of a hexadecimal digit; -1 for other characters.
constexpr std::array<int8_t, 256> kHexDigits = [] {
  std::array<int8_t, 256> digits{};
  for (int8_t& digit : digits) digit = -1;
  for (int8_t i = 0; i < 16; ++i) {
    digits[static_cast<uint8_t>("0123456789abcdef"[i])] = i;
    digits[static_cast<uint8_t>("0123456789ABCDEF"[i])] = i;
  }
  return digits;
}();

// The value of one key.
struct Value {
  const char* kind = nullptr;  // "a number", ...; null: the key is missing
  bool is_list = false;
  bool is_wanted = false;      // a text or a list of texts
  std::string lone_surrogate;  // as written in the line
  std::vector<std::string> texts;
};

// A parser as strict as Python's, which reports position and reason of errors.
class PythonJsonParser {
 public:
  PythonJsonParser(std::string_view line, const std::vector<std::string>& keys)
      : begin_(line.data()), p_(begin_), end_(begin_ + line.size()), keys_(keys) {}

  // The value under each key; throws Problem.
  std::vector<Value> parse() {
    check_encoding();
    std::vector<Value> values(keys_.size());
    skip_blanks();
    if (p_ == end_) throw Problem{"the line is blank; expected one JSON object"};
    const char first = *p_;
    if (first == '{') {
      parse_members(values);
    } else {
      skip_value();
    }
    skip_blanks();
    if (p_ != end_) fail("there is more text after the end of the JSON value");
    if (first != '{') {
      throw Problem{fmt::format("the line holds {}, expected a JSON object", kind_of(first))};
    }
    return values;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Problem{fmt::format("column {}: {}", p_ - begin_ + 1, what)};
  }

  void check_encoding() {
    const std::string_view line(begin_, static_cast<size_t>(end_ - begin_));
    if (line.starts_with(kByteOrderMark)) {
      throw Problem{"the line starts with a UTF-8 byte order mark; save the file without one"};
    }
    for (const char* p = begin_; p < end_;) {
      const CodePoint c = decode_utf8(p, end_);
      if (c.value == kReplacementCharacter &&
          std::string_view(p, static_cast<size_t>(c.length)) != "\xEF\xBF\xBD") {
        p_ = p;
        fail(fmt::format("byte {:#04x} is not valid UTF-8 here", static_cast<unsigned char>(*p)));
      }
      p += c.length;
    }
  }

  static const char* kind_of(char first) {
    switch (first) {
      case '{':
        return "an object";
      case '[':
        return "a list";
      case '"':
        return "a text";
      case 't':
      case 'f':
        return "a boolean";
      case 'n':
        return "null";
      default:
        return "a number";
    }
  }

  void skip_blanks() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\n' || *p_ == '\r')) ++p_;
  }

  void expect(char c, const char* where) {
    skip_blanks();
    if (p_ == end_ || *p_ != c) fail(fmt::format("expected '{}' {}", c, where));
    ++p_;
  }

  bool take(char c) {
    skip_blanks();
    if (p_ == end_ || *p_ != c) return false;
    ++p_;
    return true;
  }

  void parse_members(std::vector<Value>& values) {
    ++p_;  // {
    if (take('}')) return;
    do {
      skip_blanks();
      const std::string name = parse_key();
      expect(':', "after a key");
      skip_blanks();
      const auto key = std::find(keys_.begin(), keys_.end(), name);
      if (key == keys_.end()) {
        skip_value();
      } else {
        values[static_cast<size_t>(key - keys_.begin())] = parse_value();
      }
    } while (take(','));
    expect('}', "or ',' after a value");
  }

  std::string parse_key() {
    if (p_ == end_ || *p_ != '"') fail("expected a key in double quotes");
    std::string ignored;
    return parse_text(ignored);
  }

  Value parse_value() {
    if (p_ == end_) fail("the line ends where a value should be");
    Value value;
    value.kind = kind_of(*p_);
    if (*p_ == '"') {
      value.is_wanted = true;
      value.texts.push_back(parse_text(value.lone_surrogate));
    } else if (*p_ == '[') {
      parse_list(value);
    } else {
      skip_value();
    }
    return value;
  }

  void parse_list(Value& value) {
    value.is_list = true;
    value.is_wanted = true;
    ++p_;  // [
    if (take(']')) return;
    do {
      skip_blanks();
      if (p_ < end_ && *p_ == '"') {
        value.texts.push_back(parse_text(value.lone_surrogate));
      } else {
        value.is_wanted = false;
        skip_value();
      }
    } while (take(','));
    expect(']', "or ',' after a list item");
  }

  // Any value, without recursion: nesting has no limit.
  void skip_value() {
    std::string open;  // the open brackets
    while (true) {
      skip_blanks();
      if (p_ == end_) fail("the line ends where a value should be");
      if (*p_ == '{' || *p_ == '[') {
        open += *p_++;
        const bool is_object = open.back() == '{';
        if (take(is_object ? '}' : ']')) {
          open.pop_back();
        } else {
          if (is_object) skip_key();
          continue;
        }
      } else {
        skip_scalar();
      }
      while (true) {  // after a value
        if (open.empty()) return;
        const bool is_object = open.back() == '{';
        if (take(',')) {
          if (is_object) skip_key();
          break;
        }
        if (is_object) {
          expect('}', "or ',' after a value");
        } else {
          expect(']', "or ',' after a list item");
        }
        open.pop_back();
      }
    }
  }

  void skip_key() {
    skip_blanks();
    parse_key();
    expect(':', "after a key");
  }

  void skip_scalar() {
    if (*p_ == '"') {
      std::string ignored;
      parse_text(ignored);
      return;
    }
    for (const std::string_view word : {"true", "false", "null", "NaN", "Infinity", "-Infinity"}) {
      if (std::string_view(p_, static_cast<size_t>(end_ - p_)).starts_with(word)) {
        p_ += word.size();
        return;
      }
    }
    skip_number();
  }

  bool take_digits() {
    const char* const first = p_;
    while (p_ < end_ && *p_ >= '0' && *p_ <= '9') ++p_;
    return p_ > first;
  }

  void skip_number() {
    if (p_ < end_ && *p_ == '-') ++p_;
    if (p_ < end_ && *p_ == '0') {
      ++p_;
    } else if (!take_digits()) {
      fail("expected a JSON value");
    }
    // Like Python, leaves the rest of an invalid number to the next rule, which reports it.
    const char* const whole = p_;
    if (p_ < end_ && *p_ == '.') {
      ++p_;
      if (!take_digits()) p_ = whole;
    }
    const char* const mantissa = p_;
    if (p_ < end_ && (*p_ == 'e' || *p_ == 'E')) {
      ++p_;
      if (p_ < end_ && (*p_ == '+' || *p_ == '-')) ++p_;
      if (!take_digits()) p_ = mantissa;
    }
  }

  // Four hexadecimal digits at p_.
  char32_t parse_hex() {
    char32_t value = 0;
    for (int i = 0; i < 4; ++i, ++p_) {
      const int digit = p_ < end_ ? kHexDigits[static_cast<uint8_t>(*p_)] : -1;
      if (digit < 0) fail("\\u must be followed by four hexadecimal digits");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  // A \u escape after its u, and the second half of a surrogate pair.
  void parse_unicode_escape(std::string& text, std::string& lone_surrogate) {
    const char* const start = p_ - 2;
    char32_t c = parse_hex();
    if (c >= 0xD800 && c <= 0xDBFF && end_ - p_ >= 6 && p_[0] == '\\' && p_[1] == 'u') {
      const char* const second = p_;
      p_ += 2;
      const char32_t low = parse_hex();
      if (low >= 0xDC00 && low <= 0xDFFF) {
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
      } else {
        p_ = second;
      }
    }
    if (is_surrogate(c)) {
      if (lone_surrogate.empty()) lone_surrogate = std::string(start, start + 6);
      c = kReplacementCharacter;
    }
    append_utf8(text, c);
  }

  // The text in double quotes at p_.
  std::string parse_text(std::string& lone_surrogate) {
    std::string text;
    ++p_;
    while (true) {
      if (p_ == end_) fail("the line ends inside a text; its closing quote is missing");
      const char c = *p_;
      if (c == '"') break;
      if (static_cast<unsigned char>(c) < 0x20) {
        fail(fmt::format("control character {:#04x} inside a text must be written as an escape",
                         static_cast<unsigned char>(c)));
      }
      ++p_;
      if (c != '\\') {
        text += c;
        continue;
      }
      if (p_ == end_) fail("the line ends inside a text; its closing quote is missing");
      const char escape = kEscapes[static_cast<uint8_t>(*p_)];
      if (*p_ == 'u') {
        ++p_;
        parse_unicode_escape(text, lone_surrogate);
      } else if (escape != '\0') {
        text += escape;
        ++p_;
      } else {
        --p_;
        fail(fmt::format("\\{} is not a JSON escape", std::string_view(p_ + 1, 1)));
      }
    }
    ++p_;
    return text;
  }

  const char* begin_;
  const char* p_;
  const char* end_;
  const std::vector<std::string>& keys_;
};

// Fast path for the most frequent lines, in one pass: an object whose values are texts. Leaves
// other lines, and all errors, to the other parsers; does not check bytes beyond ASCII.
class FlatObject {
 public:
  // REQUIRES: kPadding bytes after `line` are readable, and line.size() + kPadding bytes at `to`
  // are writable.
  FlatObject(std::string_view line, char* to)
      : p_(line.data()), end_(line.data() + line.size()), to_(to) {}

  // Calls take(key, text) for the members, in order; false for other lines. The texts are stored at
  // `to`.
  template <class Take>
  bool parse(const Take& take) {
    if (!skip('{')) return false;
    do {
      std::string_view key;
      std::string_view text;
      if (!parse_text(key) || !skip(':') || !parse_text(text)) return false;
      take(key, text);
    } while (skip(','));
    return skip('}') && (skip_blanks(), p_ == end_);
  }
  bool is_ascii() const { return beyond_ascii_ == 0; }

 private:
  void skip_blanks() {
    while (p_ < end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\n' || *p_ == '\r')) ++p_;
  }
  bool skip(char c) {
    skip_blanks();
    if (p_ == end_ || *p_ != c) return false;
    ++p_;
    return true;
  }

  bool parse_text(std::string_view& text) {
    if (!skip('"')) return false;
    const char* const begin = to_;
    while (p_ < end_) {
      const AsciiBlock block(p_);
      const uint64_t stops = block.equal('"') | block.equal('\\') | block.range('\0', 0x20);
      std::memcpy(to_, p_, AsciiBlock::kBytes);
      beyond_ascii_ |= block.non_ascii();
      const int plain = std::countr_zero(stops);  // 64 if all are
      p_ += plain;
      to_ += plain;
      if (stops == 0) continue;
      if (p_ >= end_) return false;
      if (*p_ == '"') {
        ++p_;
        text = {begin, static_cast<size_t>(to_ - begin)};
        return true;
      }
      if (*p_ != '\\' || !parse_escape()) return false;
    }
    return false;
  }

  // An escape is longer than its character.
  bool parse_escape() {
    if (end_ - p_ < 2) return false;
    if (p_[1] == 'u') return parse_unicode_escape();
    const char meant = kEscapes[static_cast<uint8_t>(p_[1])];
    if (meant == '\0') return false;
    p_ += 2;
    *to_++ = meant;
    return true;
  }
  bool parse_unicode_escape() {
    int32_t c = parse_hex();
    if (c >= 0xD800 && c <= 0xDBFF) {
      const int32_t low = parse_hex();
      if (low < 0xDC00 || low > 0xDFFF) return false;
      c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    if (c < 0 || is_surrogate(static_cast<char32_t>(c))) return false;
    to_ = write_utf8(to_, static_cast<char32_t>(c));
    return true;
  }
  // The four digits of a \u at p_, or -1.
  int32_t parse_hex() {
    if (end_ - p_ < 6 || p_[0] != '\\' || p_[1] != 'u') return -1;
    int32_t value = 0;
    for (int i = 2; i < 6; ++i) {
      const int32_t digit = kHexDigits[static_cast<uint8_t>(p_[i])];
      if (digit < 0) return -1;
      value = value * 16 + digit;
    }
    p_ += 6;
    return value;
  }

  const char* p_;
  const char* end_;
  char* to_;
  uint64_t beyond_ascii_ = 0;
};

}  // namespace

struct JsonLineParser::Fast {
  simdjson::dom::parser parser;
  std::vector<char> flat_texts;
  int lines_that_are_not_flat = 0;  // number of following lines to parse without the fast path
};

JsonLineParser::JsonLineParser(std::vector<std::string> keys)
    : keys_(std::move(keys)),
      texts_(keys_.size()),
      fast_(std::make_unique<Fast>()),
      storage_(keys_.size()) {}

JsonLineParser::~JsonLineParser() = default;

std::optional<std::string> JsonLineParser::parse(std::string_view line) {
  for (std::vector<std::string_view>& texts : texts_) texts.clear();
  if (parse_flat(line) || parse_fast(line)) return std::nullopt;
  try {
    std::vector<Value> values = PythonJsonParser(line, keys_).parse();
    for (size_t key = 0; key < keys_.size(); ++key) {
      Value& value = values[key];
      if (value.kind == nullptr) {
        throw Problem{fmt::format("the object has no key \"{}\"", keys_[key])};
      }
      if (!value.is_wanted) {
        throw Problem{
            fmt::format("key \"{}\" holds {}, expected a text or a list of texts", keys_[key],
                        value.is_list ? "a list with items that are not texts" : value.kind)};
      }
      if (!value.lone_surrogate.empty()) {
        throw Problem{
            fmt::format("key \"{}\" holds the lone surrogate {}, which is not a character",
                        keys_[key], value.lone_surrogate)};
      }
      storage_[key] = std::move(value.texts);
      texts_[key].assign(storage_[key].begin(), storage_[key].end());
    }
  } catch (const Problem& problem) {
    return problem.text;
  }
  return std::nullopt;
}

bool JsonLineParser::parse_flat(std::string_view line) {
  if (fast_->lines_that_are_not_flat > 0) {
    --fast_->lines_that_are_not_flat;
    return false;
  }
  if (fast_->flat_texts.size() < line.size() + kPadding) {
    fast_->flat_texts.resize(2 * line.size() + kPadding);
  }
  FlatObject object(line, fast_->flat_texts.data());
  const bool is_flat = object.parse([&](std::string_view key, std::string_view text) {
    for (size_t wanted = 0; wanted < keys_.size(); ++wanted) {
      if (key == keys_[wanted]) texts_[wanted].assign(1, text);
    }
  });
  const auto has_text = [](const std::vector<std::string_view>& texts) { return !texts.empty(); };
  if (is_flat && std::all_of(texts_.begin(), texts_.end(), has_text) &&
      (object.is_ascii() || simdjson::validate_utf8(line))) {
    return true;
  }
  for (std::vector<std::string_view>& texts : texts_) texts.clear();
  constexpr int kPause = 100;
  fast_->lines_that_are_not_flat = kPause;  // they mostly look like this one
  return false;
}

bool JsonLineParser::parse_fast(std::string_view line) {
  if (line.starts_with(kByteOrderMark)) return false;
  simdjson::dom::object object;
  if (fast_->parser.parse(line.data(), line.size(), false).get_object().get(object)) return false;
  std::vector<simdjson::dom::element> values(keys_.size());
  std::vector<bool> found(keys_.size());
  for (const simdjson::dom::key_value_pair field : object) {
    for (size_t key = 0; key < keys_.size(); ++key) {
      if (field.key != keys_[key]) continue;
      values[key] = field.value;
      found[key] = true;
    }
  }
  for (size_t key = 0; key < keys_.size(); ++key) {
    std::string_view text;
    if (!found[key] || values[key].get_string().get(text) || has_surrogate(text)) return false;
    texts_[key] = {text};
  }
  return true;
}

}  // namespace megatron
