#include "annex/deepspeed/relaxed_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "megatron/core/error.h"
#include "megatron/core/json.h"
#include "megatron/core/printable.h"

namespace megatron::frontends {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 100;

class RelaxedJsonReader {
 public:
  RelaxedJsonReader(const std::string& text, const std::string& source)
      : text_(text), source_(source) {}

  json document() {
    skip();
    if (at_end()) return json::object();
    const bool has_brace = peek() == '{' || peek() == '[';
    json value = has_brace ? this->value(0) : members(0, '\0');
    skip();
    if (!at_end()) fail("text after the end of the document");
    return value;
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  bool starts(std::string_view word) const { return text_.compare(at_, word.size(), word) == 0; }

  [[noreturn]] void fail(const std::string& what) const {
    const auto here = text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size()));
    const auto line = 1 + std::count(text_.begin(), here, '\n');
    throw FormatError(fmt::format("{}: line {}: {}; correct the JSON", source_, line, what));
  }

  // White space and comments.
  void skip() {
    while (!at_end()) {
      if (std::string_view(" \t\r\n").find(peek()) != std::string_view::npos) {
        ++at_;
      } else if (peek() == '#' || starts("//")) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (starts("/*")) {
        const size_t end = text_.find("*/", at_ + 2);
        if (end == std::string::npos) fail("a comment /* without its end */");
        at_ = end + 2;
      } else {
        return;
      }
    }
  }

  json value(int depth) {
    if (depth > kMaxDepth) fail(fmt::format("more than {} levels of nesting", kMaxDepth));
    if (peek() == '{') {
      ++at_;
      return members(depth + 1, '}');
    }
    if (peek() == '[') return list(depth + 1);
    if (peek() == '"' || peek() == '\'') return quoted();
    return bare_value();
  }

  json members(int depth, char end) {
    json map = json::object();
    for (;;) {
      skip();
      if (at_end() && end == '\0') return map;
      if (at_end()) fail("a map without its end }");
      if (peek() == end) {
        ++at_;
        return map;
      }
      const std::string name = key();
      skip();
      if (peek() != ':') fail(fmt::format("the key {} without a colon", name));
      ++at_;
      skip();
      if (map.contains(name)) fail(fmt::format("the key {} appears twice in one map", name));
      map[name] = value(depth);
      skip();
      if (peek() == ',') ++at_;
    }
  }

  json list(int depth) {
    ++at_;
    json items = json::array();
    for (;;) {
      skip();
      if (at_end()) fail("a list without its end ]");
      if (peek() == ']') {
        ++at_;
        return items;
      }
      items.push_back(value(depth));
      skip();
      if (peek() == ',') ++at_;
    }
  }

  std::string key() {
    if (peek() == '"' || peek() == '\'') return quoted();
    const size_t begin = at_;
    while (!at_end() && std::string_view(" \t\r\n:,{}[]").find(peek()) == std::string_view::npos) {
      ++at_;
    }
    if (at_ == begin) fail(fmt::format("{} where a key is expected", peek()));
    return text_.substr(begin, at_ - begin);
  }

  std::string quoted() {
    const char quote = peek();
    const size_t begin = ++at_;
    while (!at_end() && peek() != quote) at_ += peek() == '\\' ? 2 : 1;
    if (at_end()) fail("a text without its closing quote");
    std::string inside = text_.substr(begin, at_ - begin);
    ++at_;
    if (quote == '\'') {  // a '"' inside would end JSON's text
      for (size_t i = 0; i < inside.size(); ++i) {
        if (inside[i] == '\\') {
          ++i;
        } else if (inside[i] == '"') {
          inside.insert(i++, "\\");
        }
      }
    }
    const json value = try_parse_json('"' + inside + '"');
    if (value.is_string()) return value.get<std::string>();
    fail(fmt::format("the text \"{}\" has an escape that JSON does not have", shortened(inside)));
  }

  // A number, true, false or null that ends where a value may end; otherwise hjson's text without
  // quotes, which goes on to the end of its line.
  json bare_value() {
    const size_t line_end = std::min(text_.find('\n', at_), text_.size());
    const size_t word_end = std::min(text_.find_first_of(" \t\r\n,}]#/", at_), line_end);
    const std::string word = text_.substr(at_, word_end - at_);
    if (word.empty()) fail(fmt::format("{} where a value is expected", peek()));
    const json number = try_parse_json(word);
    if (number.is_primitive() && !number.is_discarded()) {
      at_ = word_end;
      return number;
    }
    std::string line = text_.substr(at_, line_end - at_);
    line.erase(line.find_last_not_of(" \t\r") + 1);
    at_ = line_end;
    return line;
  }

  const std::string& text_;
  const std::string& source_;
  size_t at_ = 0;
};

}  // namespace

json read_relaxed_json(const std::string& text, const std::string& source) {
  if (const size_t valid = utf8_prefix(text); valid < text.size()) {
    throw FormatError(fmt::format("{}: byte {} is not UTF-8; correct the JSON", source, valid + 1));
  }
  return RelaxedJsonReader(text, source).document();
}

}  // namespace megatron::frontends
