#include "megatron/core/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "megatron/core/printable.h"

namespace megatron {
namespace {

std::string at_place(std::string_view text, size_t byte) {
  const size_t before = std::min(text.size(), byte);
  const auto line =
      1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(before), '\n');
  return fmt::format("at byte {} (line {})", byte, line);
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }
bool is_inside_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// True if the byte, counted from 1, belongs to, or truncates, an invalid UTF-8 sequence.
bool is_no_utf8(std::string_view text, size_t byte) {
  size_t at = byte - 1;
  if (at > 0 && is_ascii(text[at])) --at;
  size_t first = at;
  while (first > 0 && at - first < 3 && is_inside_character(text[first])) --first;
  if (is_ascii(text[first])) return first != at;
  return first + utf8_length(text, first) <= at;
}

// A byte of the text, which tracks the parser's position.
class JsonPlace {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  JsonPlace(const char* at, const char** shown) : at_(at), shown_(shown) {}
  reference operator*() const { return *at_; }
  JsonPlace& operator++() {
    *shown_ = ++at_;
    return *this;
  }
  JsonPlace operator++(int) {
    const JsonPlace before = *this;
    ++*this;
    return before;
  }
  friend bool operator!=(const JsonPlace& a, const JsonPlace& b) { return a.at_ != b.at_; }

 private:
  const char* at_;
  const char** shown_;
};

// Takes the parser's events, counts, then makes the values.
template <class Json>
class LimitedBuilder {
 public:
  LimitedBuilder(std::string_view text, const JsonLimits& limits, std::string_view subject)
      : text_(text), limits_(limits), subject_(subject), at_(text.data()) {}

  Json built() {
    if (static_cast<int64_t>(text_.size()) > limits_.max_bytes) {
      refuse(
          fmt::format("is JSON of {} bytes; at most {} are read", text_.size(), limits_.max_bytes));
    }
    const char* const end = text_.data() + text_.size();
    // False only after parse_error(), which throws.
    Json::sax_parse(JsonPlace(text_.data(), &at_), JsonPlace(end, &at_), this);
    return std::move(root_);
  }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(typename Json::number_integer_t value) { return add(value); }
  bool number_unsigned(typename Json::number_unsigned_t value) { return add(value); }
  bool number_float(typename Json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(typename Json::binary_t&) { return false; }  // no part of JSON's text

  bool start_object(size_t) { return open(Json::value_t::object); }
  bool start_array(size_t) { return open(Json::value_t::array); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    const auto [place, is_new] = open_.back()->emplace(std::move(name), nullptr);
    if (!is_new && limits_.unique_keys) {
      throw FormatError(fmt::format("{}: key {} occurs twice in one object {}; remove one of them",
                                    subject_, shortened(std::string_view(place.key())), here()));
    }
    member_ = &*place;
    return true;
  }

  bool parse_error(size_t byte, const std::string&, const nlohmann::json::exception& error) {
    constexpr int kOutOfRange = 406;
    if (error.id == kOutOfRange) {
      throw FormatError(fmt::format("{}: has a number beyond all limits {}; write a smaller one",
                                    subject_, here()));
    }
    throw FormatError(
        fmt::format("{}: {}; correct it or copy it again", subject_, json_problem(text_, byte)));
  }

 private:
  std::string here() const { return at_place(text_, static_cast<size_t>(at_ - text_.data())); }
  [[noreturn]] void refuse(const std::string& problem) const {
    throw JsonTooLarge(fmt::format("{}: {}; is this the right text?", subject_, problem));
  }

  Json* place_of_next() {
    if (++num_values_ > limits_.max_values) {
      refuse(fmt::format("has more than {} values {}", limits_.max_values, here()));
    }
    if (open_.empty()) return &root_;
    if (!open_.back()->is_array()) return member_;
    open_.back()->push_back(nullptr);
    return &open_.back()->back();
  }
  template <class Value>
  bool add(Value&& value) {
    *place_of_next() = std::forward<Value>(value);
    return true;
  }
  bool open(typename Json::value_t type) {
    if (static_cast<int64_t>(open_.size()) >= limits_.max_depth) {
      refuse(fmt::format("JSON is nested deeper than {} levels {}", limits_.max_depth, here()));
    }
    Json* const place = place_of_next();
    *place = type;
    open_.push_back(place);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  const JsonLimits& limits_;
  std::string_view subject_;
  const char* at_;
  Json root_;
  std::vector<Json*> open_;  // lists and objects that have not ended
  Json* member_ = nullptr;   // of the innermost object: the value of the last key
  int64_t num_values_ = 0;
};

template <class Json>
Json built(std::string_view text, const JsonLimits& limits, std::string_view subject) {
  return LimitedBuilder<Json>(text, limits, subject).built();
}

template <class Json>
Json built_or_discarded(std::string_view text, const JsonLimits& limits) {
  try {
    return built<Json>(text, limits, "");
  } catch (const FormatError&) {
    return Json(Json::value_t::discarded);
  }
}

// Appends a value until the text is long enough. Each level adds a character, so levels end, too.
void append_shortened(const nlohmann::json& value, std::string& out) {
  if (out.size() > kShortened) return;
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    // A piece is enough; shortened() takes care of its end.
    out += '"' + text.substr(0, kShortened + 8);
    if (text.size() <= kShortened + 8) out += '"';
  } else if (value.is_structured()) {
    out += value.is_array() ? '[' : '{';
    const char* separator = "";
    for (auto it = value.begin(); it != value.end() && out.size() <= kShortened; ++it) {
      out += separator;
      if (value.is_object()) out += '"' + it.key().substr(0, kShortened + 8) + "\":";
      append_shortened(*it, out);
      separator = ",";
    }
    out += value.is_array() ? ']' : '}';
  } else {
    out += value.dump();
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const JsonLimits& limits,
                          std::string_view subject) {
  return built<nlohmann::json>(text, limits, subject);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const JsonLimits& limits,
                                          std::string_view subject) {
  return built<nlohmann::ordered_json>(text, limits, subject);
}

nlohmann::json try_parse_json(std::string_view text, const JsonLimits& limits) {
  return built_or_discarded<nlohmann::json>(text, limits);
}

nlohmann::ordered_json try_parse_ordered_json(std::string_view text, const JsonLimits& limits) {
  return built_or_discarded<nlohmann::ordered_json>(text, limits);
}

std::string json_problem(std::string_view text, size_t byte) {
  const std::string place = at_place(text, byte);
  if (byte > text.size() || text.empty()) {
    return fmt::format("is not valid JSON {}: it ends too early", place);
  }
  if (is_no_utf8(text, byte)) return fmt::format("is not valid JSON {}: it is not UTF-8", place);
  return fmt::format("is not valid JSON {}", place);
}

std::string json_problem(const std::exception& error) {
  constexpr int kType = 302;
  constexpr int kMissingKey = 403;
  const auto* known = dynamic_cast<const nlohmann::json::exception*>(&error);
  if (known == nullptr) return error.what();
  const std::string_view what = known->what();  // "[..] key 'x' not found", "[..] type must be .."
  if (const size_t begin = what.find('\''); known->id == kMissingKey && begin < what.size()) {
    const size_t end = what.rfind('\'');
    return fmt::format("lacks the key {}", shortened(what.substr(begin + 1, end - begin - 1)));
  }
  const size_t rule = what.find("must be ");
  if (known->id == kType && rule != std::string_view::npos) {
    return fmt::format("has a value of another type: it {}", what.substr(rule));
  }
  return "has a value of another type than belongs there";
}

std::string dump_json(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string dump_json(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string shortened_json(const nlohmann::json& value) {
  std::string text;
  append_shortened(value, text);
  std::string out = printable(text);
  if (out.size() <= kShortened) return out;
  // Not within a character or an escape.
  size_t end = 0;
  std::string shown;
  while (end < text.size()) {
    const size_t length = std::max<size_t>(1, utf8_length(text, end));
    const std::string next = printable(std::string_view(text).substr(end, length));
    if (shown.size() + next.size() > kShortened) break;
    shown += next;
    end += length;
  }
  return shown + "...";
}

}  // namespace megatron
