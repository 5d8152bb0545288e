#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "megatron/core/json.h"
#include "megatron/core/number_text.h"
#include "megatron/jinja/functions.h"
#include "megatron/jinja/template.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::jinja {
namespace {

using nlohmann::json;

constexpr size_t kMaxJsonDepth = 64;

// Takes the parser's events. Objects have a hash table of their keys, so that hostile ones cost no
// more than others.
class ValueBuilder {
 public:
  Value take() { return std::move(root_); }

  bool null() { return add(Value()); }
  bool boolean(bool value) { return add(Value(value)); }
  bool number_integer(int64_t value) { return add(Value(value)); }
  bool number_unsigned(uint64_t value) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return add(Value(static_cast<double>(value)));
    }
    return add(Value(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string&) { return add(Value(value)); }
  bool string(std::string& text) { return add(Value(std::move(text))); }
  bool binary(json::binary_t&) { return false; }
  bool start_object(size_t) { return open(true); }
  bool start_array(size_t) { return open(false); }
  bool key(std::string& name) {
    open_.back().key = std::move(name);
    return true;
  }
  bool end_object() {
    Value value = Value::mapping(std::move(open_.back().mapping));
    open_.pop_back();
    return add(std::move(value));
  }
  bool end_array() {
    Value value = Value::list(std::move(open_.back().items));
    open_.pop_back();
    return add(std::move(value));
  }
  bool parse_error(size_t byte, const std::string&, const json::exception&) {
    byte_ = byte;
    return false;
  }
  size_t byte() const { return byte_; }
  bool is_too_deep() const { return open_.size() > kMaxJsonDepth; }

 private:
  struct Container {
    bool is_object = false;
    std::string key = {};
    Mapping mapping = {};
    std::vector<Value> items = {};
  };

  bool add(Value value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().mapping.set(open_.back().key, std::move(value));
    } else {
      open_.back().items.push_back(std::move(value));
    }
    return true;
  }
  bool open(bool is_object) {
    open_.push_back({.is_object = is_object});
    return !is_too_deep();
  }

  Value root_;
  std::vector<Container> open_;
  size_t byte_ = 0;
};

void append_escape(std::string& out, char32_t c) { out += fmt::format("\\u{:04x}", uint32_t{c}); }

void append_string(std::string& out, const std::string& text, bool ensure_ascii) {
  out += '"';
  for (const char32_t c : code_points(text)) {
    constexpr std::u32string_view kEscaped = U"\"\\\n\r\t\b\f";
    constexpr std::string_view kLetters = "\"\\nrtbf";
    const size_t place = kEscaped.find(c);
    if (place != std::u32string_view::npos) {
      out += '\\';
      out += kLetters[place];
    } else if (c < 0x20 || (ensure_ascii && c > 0x7F && c < 0x10000)) {
      append_escape(out, c);
    } else if (ensure_ascii && c >= 0x10000) {
      append_escape(out, 0xD800 + ((c - 0x10000) >> 10));
      append_escape(out, 0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      append_utf8(out, c);
    }
  }
  out += '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonFormat& format) : format_(format) {}

  void append(const Value& value, int64_t level) {
    require_size(std::ssize(out_));
    if (value.is_none()) {
      out_ += "null";
    } else if (const bool* flag = value.get_if<bool>()) {
      out_ += *flag ? "true" : "false";
    } else if (const auto* number = value.get_if<double>()) {
      out_ += python_repr(*number);
    } else if (const auto* integer = value.get_if<int64_t>()) {
      out_ += std::to_string(*integer);
    } else if (const std::string* text = value.text()) {
      append_string(out_, *text, format_.ensure_ascii);
    } else if (const Mapping* mapping = value.mapping()) {
      append_mapping(*mapping, level);
    } else if (value.sequence() != nullptr && value.sequence()->is_indexed()) {
      append_list(value.sequence()->items, level);
    } else {
      throw Fault(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void begin_line(int64_t level) {
    if (!format_.indent) return;
    out_ += '\n';
    for (int64_t i = 0; i < level; ++i) out_ += *format_.indent;
  }

  void append_list(const std::vector<Value>& items, int64_t level) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += format_.item_separator;
      begin_line(level + 1);
      append(items[i], level + 1);
    }
    begin_line(level);
    out_ += ']';
  }

  static std::string key_text(const Value& key) {
    if (const std::string* text = key.text()) return *text;
    if (key.is_none() || as_number(key)) {
      return json_of(key, {});
    }
    throw Fault(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
  }

  void append_mapping(const Mapping& mapping, int64_t level) {
    if (mapping.entries.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : mapping.entries) entries.push_back(&entry);
    if (format_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return is_less(a->first, b->first); });
    }
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      const auto* entry = entries[i];
      if (i > 0) out_ += format_.item_separator;
      begin_line(level + 1);
      append_string(out_, key_text(entry->first), format_.ensure_ascii);
      out_ += format_.key_separator;
      append(entry->second, level + 1);
    }
    begin_line(level);
    out_ += '}';
  }

  const JsonFormat& format_;
  std::string out_;
};

}  // namespace

std::string json_of(const Value& value, const JsonFormat& format) {
  JsonWriter writer(format);
  writer.append(value, 0);
  return writer.take();
}

std::string json_of_value(const Value& value) { return json_of(value, {}); }

Value value_of_json(std::string_view text) {
  ValueBuilder builder;
  if (json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  if (builder.is_too_deep()) {
    throw FormatError(fmt::format("the JSON is nested deeper than {} levels", kMaxJsonDepth));
  }
  throw FormatError("the text " + json_problem(text, builder.byte()));
}

}  // namespace megatron::jinja
