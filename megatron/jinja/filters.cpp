#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "megatron/core/number_text.h"
#include "megatron/core/printable.h"
#include "megatron/jinja/functions.h"
#include "megatron/jinja/text.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::jinja {
namespace {

using FilterFunction = Value (*)(Interpreter&, const Value&, const Arguments&);

// The element of a path such as "function.name" or "arguments.0".
class Path {
 public:
  explicit Path(const Value* path) {
    if (path == nullptr || path->is_none()) return;
    if (path->text() == nullptr) {
      parts_.push_back(*path);
      return;
    }
    for (std::string& part : split(*path->text(), ".", kNoLimit, false)) {
      const bool is_index =
          !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
      const auto index = is_index ? megatron::integer_of(part) : std::nullopt;
      parts_.push_back(index ? Value(*index) : Value(std::move(part)));
    }
  }
  Value of(Interpreter& interpreter, Value value, const Value* fallback = nullptr) const {
    for (const Value& part : parts_) {
      value = interpreter.item(value, part);
      if (value.is_undefined() && fallback != nullptr && !fallback->is_none()) value = *fallback;
    }
    return value;
  }

 private:
  std::vector<Value> parts_;
};

Value in_lower_case(Value value) {
  return value.text() != nullptr ? Value(lower(*value.text())) : value;
}

// The values that sort, unique, min and max compare.
struct Keys {
  Keys(const Bound& bound, size_t case_sensitive, size_t attribute)
      : is_case_sensitive(bound.is_true(case_sensitive)), path(bound.find(attribute)) {}
  Value of(Interpreter& interpreter, const Value& value) const {
    Value key = path.of(interpreter, value);
    return is_case_sensitive ? key : in_lower_case(std::move(key));
  }
  bool is_case_sensitive;
  Path path;
};

std::vector<Value> sorted(Interpreter& interpreter, std::vector<Value> items,
                          std::vector<Value> keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    interpreter.charge(0);
    return reverse ? is_less(keys[b], keys[a]) : is_less(keys[a], keys[b]);
  });
  std::vector<Value> result;
  for (const size_t i : order) result.push_back(std::move(items[i]));
  return result;
}

Value sort_filter(Interpreter& interpreter, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> paths;
  if (bound.has(2) && bound.at(2).text() != nullptr) {
    for (std::string& one : split(*bound.at(2).text(), ",", kNoLimit, false)) {
      paths.emplace_back(std::move(one));
    }
  } else {
    paths.push_back(bound.has(2) ? bound.at(2) : Value());
  }
  std::vector<Value> items = elements_of(subject);
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> key;
    for (const Value& path : paths) {
      Value part = Path(&path).of(interpreter, item);
      key.push_back(bound.is_true(1) ? part : in_lower_case(std::move(part)));
    }
    keys.push_back(Value::list(std::move(key)));
  }
  return Value::list(sorted(interpreter, std::move(items), std::move(keys), bound.is_true(0)));
}

std::vector<Value> items_of(const Mapping& mapping) {
  std::vector<Value> items;
  for (const auto& [key, value] : mapping.entries) items.push_back(Value::tuple({key, value}));
  return items;
}

const Mapping& required_mapping(const Value& value, std::string_view filter) {
  require_defined(value);
  if (value.mapping() != nullptr) return *value.mapping();
  throw Fault(fmt::format("{} needs a mapping in place of '{}'", filter, type_name(value)));
}

Value dictsort_filter(Interpreter& interpreter, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = bound.has(1) ? bound.text(1) : "key";
  if (by != "key" && by != "value") throw Fault("dictsort sorts by key or value");
  const Mapping& mapping = required_mapping(subject, "dictsort");
  std::vector<Value> keys;
  for (const auto& [key, value] : mapping.entries) {
    const Value& one = by == "key" ? key : value;
    keys.push_back(bound.is_true(0) ? one : in_lower_case(one));
  }
  return Value::list(sorted(interpreter, items_of(mapping), std::move(keys), bound.is_true(2)));
}

template <bool kIsMax>
Value extreme_filter(Interpreter& interpreter, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, kIsMax ? "max" : "min", {"case_sensitive", "attribute"});
  const Keys keys(bound, 0, 1);
  std::vector<Value> items = elements_of(subject);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key = keys.of(interpreter, items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = keys.of(interpreter, items[i]);
    if (kIsMax ? !is_less(best_key, key) : !is_less(key, best_key)) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Value unique_filter(Interpreter& interpreter, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "unique", {"case_sensitive", "attribute"});
  const Keys keys(bound, 0, 1);
  Mapping known;
  std::vector<Value> result;
  for (const Value& item : elements_of(subject)) {
    interpreter.charge(std::ssize(result));
    Value key = keys.of(interpreter, item);
    if (known.find(key) != nullptr) continue;
    known.set(std::move(key), Value());
    result.push_back(item);
  }
  return Value::iterator(std::move(result));
}

Value map_filter(Interpreter& interpreter, const Value& subject, const Arguments& arguments) {
  std::vector<Value> result;
  if (!is_true(subject)) return Value::iterator({});
  if (arguments.positional.empty()) {
    const Bound bound(arguments, "map", {"attribute", "default"}, 1);
    const Path path(bound.find(0));
    for (const Value& item : elements_of(subject)) {
      interpreter.charge(0);
      result.push_back(path.of(interpreter, item, bound.find(1)));
    }
    return Value::iterator(std::move(result));
  }
  const Value& name = arguments.positional.front();
  if (name.text() == nullptr || !is_filter(*name.text())) {
    throw Fault(
        fmt::format("map needs the name of a filter in place of {}", shortened(text_of(name))));
  }
  Arguments rest = arguments;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : elements_of(subject)) {
    interpreter.charge(0);
    result.push_back(apply_filter(interpreter, *name.text(), item, rest));
  }
  return Value::iterator(std::move(result));
}

template <bool kOfAttribute, bool kKeepsTrue>
Value select_filter(Interpreter& interpreter, const Value& subject, const Arguments& arguments) {
  if (!is_true(subject)) return Value::iterator({});
  Arguments rest = arguments;
  const auto take_first = [&] {
    Value first = std::move(rest.positional.front());
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  Value attribute;
  if (kOfAttribute) {
    if (rest.positional.empty()) throw Fault("Missing parameter for attribute name");
    attribute = take_first();
  }
  const Path path(&attribute);
  std::optional<std::string> test;
  if (!rest.positional.empty()) {
    test = text_of(take_first());
    if (!is_test(*test)) throw Fault(fmt::format("the test {} is not supported", shortened(*test)));
  }
  std::vector<Value> result;
  for (const Value& item : elements_of(subject)) {
    interpreter.charge(0);
    const Value value = path.of(interpreter, item);
    const bool holds = test ? apply_test(interpreter, *test, value, rest) : is_true(value);
    if (holds == kKeepsTrue) result.push_back(item);
  }
  return Value::iterator(std::move(result));
}

Value join_filter(Interpreter& interpreter, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "join", {"d", "attribute"});
  const Path path(bound.find(1));
  const std::string separator = bound.has(0) ? text_of(bound.at(0)) : "";
  std::string text;
  bool is_first = true;
  for (const Value& item : elements_of(subject)) {
    if (!is_first) text += separator;
    is_first = false;
    append_text(text, path.of(interpreter, item));
    require_size(std::ssize(text));
  }
  return Value(std::move(text));
}

Value indent_filter(Interpreter&, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "indent", {"width", "first", "blank"});
  require_defined(subject);
  if (subject.text() == nullptr) throw Fault("indent needs a string");
  const bool is_text = bound.has(0) && bound.at(0).text() != nullptr;
  std::string indent;
  if (is_text) {
    indent = *bound.at(0).text();
  } else {
    const int64_t width = std::max<int64_t>(bound.integer(0, 4), 0);
    require_size(width);
    indent = std::string(static_cast<size_t>(width), ' ');
  }
  std::string text;
  const std::vector<std::string> lines = split_lines(*subject.text() + "\n", false);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += '\n';
    const bool is_indented = i == 0 ? bound.is_true(1) : bound.is_true(2) || !lines[i].empty();
    if (is_indented) text += indent;
    text += lines[i];
    require_size(std::ssize(text));
  }
  return Value(std::move(text));
}

Value tojson_filter(Interpreter&, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonFormat format;
  format.ensure_ascii = bound.is_true(0);
  format.sort_keys = bound.is_true(3);
  if (bound.has(1) && !bound.at(1).is_none()) {
    const bool is_text = bound.at(1).text() != nullptr;
    const int64_t width = is_text ? 0 : std::clamp<int64_t>(bound.integer(1, 0), 0, 1000);
    format.indent = is_text ? *bound.at(1).text() : std::string(static_cast<size_t>(width), ' ');
    format.item_separator = ",";
  }
  if (bound.has(2) && !bound.at(2).is_none()) {
    const std::vector<Value> separators = elements_of(bound.at(2));
    if (separators.size() != 2) throw Fault("tojson needs two separators");
    format.item_separator = text_of(separators[0]);
    format.key_separator = text_of(separators[1]);
  }
  return Value(json_of(subject, format));
}

std::optional<int64_t> integer_of_double(double value) {
  if (!std::isfinite(value) || std::fabs(value) >= 9.2e18) return std::nullopt;
  return static_cast<int64_t>(value);
}

// int(text, base), without prefixes such as 0x.
std::optional<int64_t> parsed_integer(std::string_view text, int64_t base) {
  text = stripped(text);
  if (base == 10) return megatron::integer_of(text);
  if (base < 2 || base > 36) return std::nullopt;
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  const std::string_view prefix = base == 16 ? "0x" : base == 8 ? "0o" : "0b";
  if (lower(text.substr(0, 2)) == prefix) text.remove_prefix(2);
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, static_cast<int>(base));
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return is_negative ? -value : value;
}

std::optional<double> parsed_double(const Value& value) {
  if (value.text() != nullptr) return megatron::number_of(stripped(*value.text()));
  return as_number(value);
}

Value int_filter(Interpreter&, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "int", {"default", "base"});
  require_defined(subject);
  std::optional<int64_t> result = as_integer(subject);
  if (subject.text() != nullptr) result = parsed_integer(*subject.text(), bound.integer(1, 10));
  if (!result) {
    if (const auto number = parsed_double(subject)) result = integer_of_double(*number);
  }
  if (result) return Value(*result);
  return bound.has(0) ? bound.at(0) : Value(int64_t{0});
}

Value float_filter(Interpreter&, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "float", {"default"});
  require_defined(subject);
  if (const auto result = parsed_double(subject)) return Value(*result);
  return bound.has(0) ? bound.at(0) : Value(0.0);
}

// Python's round: to even, of the exact decimal value.
double rounded(double value, int64_t precision) {
  if (!std::isfinite(value)) return value;
  if (precision < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(value / scale) * scale;
  }
  const int digits = static_cast<int>(std::min<int64_t>(precision, 330));
  return megatron::number_of(fmt::format("{:.{}f}", value, digits)).value_or(value);
}

Value round_filter(Interpreter&, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "round", {"precision", "method"});
  const int64_t precision = bound.integer(0, 0);
  const std::string method = bound.has(1) ? bound.text(1) : "common";
  require_defined(subject);
  if (!as_number(subject)) {
    throw Fault(fmt::format("round needs a number in place of '{}'", type_name(subject)));
  }
  const double value = *as_number(subject);
  if (method == "common") {
    const auto integer = as_integer(subject);
    if (integer && precision >= 0) return Value(*integer);
    const double result = rounded(value, precision);
    return integer ? Value(static_cast<int64_t>(result)) : Value(result);
  }
  if (method != "ceil" && method != "floor") throw Fault("method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value * scale;
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value abs_filter(Interpreter&, const Value& subject, const Arguments&) {
  require_defined(subject);
  if (const auto integer = as_integer(subject)) {
    return Value(*integer < 0 ? checked_multiply(*integer, -1) : *integer);
  }
  if (const auto number = as_number(subject)) return Value(std::fabs(*number));
  throw Fault(fmt::format("bad operand type for abs(): '{}'", type_name(subject)));
}

Value sum_filter(Interpreter& interpreter, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "sum", {"attribute", "start"});
  const Path path(bound.find(0));
  Value total = bound.has(1) ? bound.at(1) : Value(int64_t{0});
  if (total.text() != nullptr) throw Fault("sum() cannot sum strings; use join");
  for (const Value& item : elements_of(subject)) {
    total = binary("+", total, path.of(interpreter, item));
    interpreter.charge(total);
  }
  return total;
}

Value batch_filter(Interpreter&, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "batch", {"linecount", "fill_with"}, 1);
  const int64_t size = bound.integer(0, 1);
  std::vector<Value> batches;
  std::vector<Value> batch;
  for (Value& item : elements_of(subject)) {
    if (std::ssize(batch) == size) batches.push_back(Value::list(std::exchange(batch, {})));
    batch.push_back(std::move(item));
  }
  if (!batch.empty()) {
    require_size(size);
    const bool fills = bound.has(1) && !bound.at(1).is_none();
    while (fills && std::ssize(batch) < size) batch.push_back(bound.at(1));
    batches.push_back(Value::list(std::move(batch)));
  }
  return Value::iterator(std::move(batches));
}

Value reverse_filter(Interpreter&, const Value& subject, const Arguments&) {
  std::vector<Value> items = elements_of(subject);
  std::reverse(items.begin(), items.end());
  if (subject.text() == nullptr) return Value::iterator(std::move(items));
  std::string text;
  for (const Value& item : items) text += *item.text();
  return Value(std::move(text));
}

Value title_filter(Interpreter&, const Value& subject, const Arguments&) {
  std::u32string result;
  bool begins_word = true;
  for (const char32_t c : code_points(text_of(subject))) {
    const std::u32string_view one(&c, 1);
    const bool separates =
        c == '-' || is_space(c) || std::u32string_view(U"({[<").find(c) != std::u32string::npos;
    result += begins_word ? upper_case(one) : lower_case(one);
    begins_word = separates;
  }
  return Value(to_utf8(result));
}

Value escape_filter(Interpreter&, const Value& subject, const Arguments&) {
  std::string result;
  for (const char c : text_of(subject)) {
    const size_t place = std::string_view("&<>\"'").find(c);
    constexpr std::array<std::string_view, 5> kNames = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    if (place == std::string_view::npos) {
      result += c;
    } else {
      result += kNames[place];
    }
  }
  return Value(std::move(result));
}

std::string url_quoted(const std::string& text, bool in_query) {
  std::string result;
  for (const char c : text) {
    const bool is_kept =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
        std::string_view("_.-~").find(c) != std::string_view::npos || (c == '/' && !in_query);
    if (is_kept) {
      result += c;
    } else if (c == ' ' && in_query) {
      result += '+';
    } else {
      result += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return result;
}

Value urlencode_filter(Interpreter&, const Value& subject, const Arguments&) {
  const bool is_list = subject.sequence() != nullptr || subject.mapping() != nullptr;
  if (!is_list) return Value(url_quoted(text_of(subject), false));
  std::string result;
  const std::vector<Value> pairs =
      subject.mapping() != nullptr ? items_of(*subject.mapping()) : elements_of(subject);
  for (const Value& pair : pairs) {
    const std::vector<Value> parts = elements_of(pair);
    if (parts.size() != 2) throw Fault("urlencode needs pairs");
    if (!result.empty()) result += '&';
    result += url_quoted(text_of(parts[0]), true) + '=' + url_quoted(text_of(parts[1]), true);
  }
  return Value(std::move(result));
}

Value truncate_filter(Interpreter&, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "truncate", {"length", "killwords", "end", "leeway"});
  const int64_t length = bound.integer(0, 255);
  const std::string end = bound.has(2) ? bound.text(2) : "...";
  const bool has_leeway = bound.has(3) && !bound.at(3).is_none();
  const int64_t kept = length - num_characters(end);
  if (kept < 0) throw Fault("truncate needs a length of at least that of its end");
  if (length_of(subject) <= length + (has_leeway ? bound.integer(3, 5) : 5)) return subject;
  if (subject.text() == nullptr) throw Fault("truncate needs a string");
  const std::string& text = *subject.text();
  const std::string head = slice(text, 0, kept, 1);
  if (bound.is_true(1)) return Value(head + end);
  return Value(split(head, " ", 1, true).front() + end);
}

Value wordcount_filter(Interpreter&, const Value& subject, const Arguments&) {
  int64_t words = 0;
  bool is_inside = false;
  for (const char32_t c : code_points(text_of(subject))) {
    const bool is_word = is_word_character(c);
    if (is_word && !is_inside) ++words;
    is_inside = is_word;
  }
  return Value(words);
}

Value default_filter(Interpreter&, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "default", {"default_value", "boolean"});
  const bool is_absent = subject.is_undefined() || (bound.is_true(1) && !is_true(subject));
  if (!is_absent) return subject;
  return bound.has(0) ? bound.at(0) : Value(std::string());
}

Value replace_filter(Interpreter&, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "replace", {"old", "new", "count"}, 2);
  const bool has_count = bound.has(2) && !bound.at(2).is_none();
  return Value(replaced(text_of(subject), text_of(bound.at(0)), text_of(bound.at(1)),
                        has_count ? bound.integer(2, -1) : -1));
}

Value attr_filter(Interpreter& interpreter, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "attr", {"name"}, 1);
  require_defined(subject);
  const std::string& name = bound.text(0);
  const bool is_attribute = subject.object() != nullptr || has_method(subject, name);
  if (is_attribute) return interpreter.attribute(subject, name);
  return Value::undefined(
      fmt::format("'{} object' has no attribute '{}'", type_name(subject), shortened(name)));
}

Value format_filter(Interpreter&, const Value& subject, const Arguments& arguments) {
  if (!arguments.named.empty()) {
    if (!arguments.positional.empty()) {
      throw Fault("format takes arguments with names or without, not both");
    }
    Mapping named;
    for (const auto& [name, value] : arguments.named) named.set(name, value);
    return Value(percent_formatted(text_of(subject), Value::mapping(std::move(named))));
  }
  return Value(percent_formatted(text_of(subject), Value::tuple(arguments.positional)));
}

Value first_filter(Interpreter&, const Value& subject, const Arguments&) {
  const std::vector<Value> items = elements_of(subject);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last_filter(Interpreter&, const Value& subject, const Arguments&) {
  if (subject.sequence() != nullptr && subject.sequence()->kind == Sequence::kIterator) {
    throw Fault("'generator' object is not reversible");
  }
  const std::vector<Value> items = elements_of(subject);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value items_filter(Interpreter&, const Value& subject, const Arguments&) {
  if (subject.is_undefined()) return Value::iterator({});
  return Value::iterator(items_of(required_mapping(subject, "items")));
}

Value trim_filter(Interpreter&, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "trim", {"chars"});
  return Value(std::string(stripped(text_of(subject), bound.optional_text(0))));
}

Value center_filter(Interpreter&, const Value& subject, const Arguments& arguments) {
  const Bound bound(arguments, "center", {"width"});
  return Value(padded(text_of(subject), bound.integer(0, 80), '^'));
}

Value length_filter(Interpreter&, const Value& subject, const Arguments&) {
  return Value(length_of(subject));
}
Value list_filter(Interpreter&, const Value& subject, const Arguments&) {
  return Value::list(elements_of(subject));
}
Value string_filter(Interpreter&, const Value& subject, const Arguments&) {
  return Value(text_of(subject));
}
template <std::string (*kChange)(std::string_view)>
Value text_filter(Interpreter&, const Value& subject, const Arguments&) {
  return Value(kChange(text_of(subject)));
}

struct Filter {
  std::string_view name;
  FilterFunction apply;
  bool takes_arguments;
};

constexpr std::array kFilters = {
    Filter{"abs", abs_filter, false},
    Filter{"attr", attr_filter, true},
    Filter{"batch", batch_filter, true},
    Filter{"capitalize", text_filter<capitalized>, false},
    Filter{"center", center_filter, true},
    Filter{"count", length_filter, false},
    Filter{"d", default_filter, true},
    Filter{"default", default_filter, true},
    Filter{"dictsort", dictsort_filter, true},
    Filter{"e", escape_filter, false},
    Filter{"escape", escape_filter, false},
    Filter{"first", first_filter, false},
    Filter{"float", float_filter, true},
    Filter{"format", format_filter, true},
    Filter{"indent", indent_filter, true},
    Filter{"int", int_filter, true},
    Filter{"items", items_filter, false},
    Filter{"join", join_filter, true},
    Filter{"last", last_filter, false},
    Filter{"length", length_filter, false},
    Filter{"list", list_filter, false},
    Filter{"lower", text_filter<lower>, false},
    Filter{"map", map_filter, true},
    Filter{"max", extreme_filter<true>, true},
    Filter{"min", extreme_filter<false>, true},
    Filter{"reject", select_filter<false, false>, true},
    Filter{"rejectattr", select_filter<true, false>, true},
    Filter{"replace", replace_filter, true},
    Filter{"reverse", reverse_filter, false},
    Filter{"round", round_filter, true},
    Filter{"safe", string_filter, false},
    Filter{"select", select_filter<false, true>, true},
    Filter{"selectattr", select_filter<true, true>, true},
    Filter{"sort", sort_filter, true},
    Filter{"string", string_filter, false},
    Filter{"sum", sum_filter, true},
    Filter{"title", title_filter, false},
    Filter{"tojson", tojson_filter, true},
    Filter{"trim", trim_filter, true},
    Filter{"truncate", truncate_filter, true},
    Filter{"unique", unique_filter, true},
    Filter{"upper", text_filter<upper>, false},
    Filter{"urlencode", urlencode_filter, false},
    Filter{"wordcount", wordcount_filter, false},
};

const Filter* filter_of(std::string_view name) {
  const auto place = std::find_if(kFilters.begin(), kFilters.end(),
                                  [&](const Filter& one) { return one.name == name; });
  return place == kFilters.end() ? nullptr : &*place;
}

}  // namespace

bool is_filter(std::string_view name) { return filter_of(name) != nullptr; }

Value apply_filter(Interpreter& interpreter, std::string_view name, const Value& subject,
                   const Arguments& arguments) {
  const Filter* filter = filter_of(name);
  if (filter == nullptr) throw Fault(fmt::format("No filter named '{}'.", shortened(name)));
  if (!filter->takes_arguments) Bound(arguments, name, {});
  return filter->apply(interpreter, subject, arguments);
}

}  // namespace megatron::jinja
