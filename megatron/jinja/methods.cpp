#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "megatron/jinja/functions.h"
#include "megatron/jinja/text.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron::jinja {
namespace {

using Texts = std::vector<std::string>;

struct MethodCall {
  Interpreter& interpreter;
  std::string_view name;
  const Arguments& arguments;
};

Value list_of(Texts texts) {
  std::vector<Value> items;
  for (std::string& text : texts) items.emplace_back(std::move(text));
  return Value::list(std::move(items));
}

using TextMethod = Value (*)(const std::string& self, const MethodCall& call);

template <std::string (*kChange)(std::string_view)>
Value changed_text(const std::string& self, const MethodCall& call) {
  Bound(call.arguments, call.name, {});
  return Value(kChange(self));
}

template <bool kLeft, bool kRight>
Value strip_method(const std::string& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"chars"});
  return Value(std::string(stripped(self, bound.optional_text(0), kLeft, kRight)));
}

template <bool kFromRight>
Value split_method(const std::string& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"sep", "maxsplit"});
  return list_of(split(self, bound.optional_text(0), bound.integer(1, -1), kFromRight));
}

template <bool kFromRight>
Value partition_method(const std::string& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"sep"}, 1);
  const std::string& separator = bound.text(0);
  if (separator.empty()) throw Fault("empty separator");
  const size_t at = kFromRight ? self.rfind(separator) : self.find(separator);
  if (at == std::string::npos) {
    const Value none{std::string()};
    return kFromRight ? Value::tuple({none, none, Value(self)})
                      : Value::tuple({Value(self), none, none});
  }
  return Value::tuple(
      {Value(self.substr(0, at)), Value(separator), Value(self.substr(at + separator.size()))});
}

// The range [start, end) of a text, from the arguments at 1 and 2.
std::pair<int64_t, int64_t> range_of(const std::string& self, const Bound& bound) {
  const int64_t length = num_characters(self);
  const auto place = [&](size_t index, int64_t fallback) {
    if (!bound.has(index) || bound.at(index).is_none()) return fallback;
    const int64_t given = bound.integer(index, fallback);
    return given < 0 ? std::max<int64_t>(0, given + length) : given;
  };
  return {place(1, 0), std::min(place(2, length), length)};
}

template <bool kFromRight, bool kMustFind>
Value find_method(const std::string& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"sub", "start", "end"}, 1);
  const auto [begin, end] = range_of(self, bound);
  const int64_t place = find(self, bound.text(0), begin, end, kFromRight);
  if (kMustFind && place < 0) throw Fault("substring not found");
  return Value(place);
}

Value count_method(const std::string& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"sub", "start", "end"}, 1);
  const auto [begin, end] = range_of(self, bound);
  if (begin > end) return Value(int64_t{0});
  return Value(count(slice(self, begin, end, 1), bound.text(0)));
}

template <bool kAtEnd>
Value affix_method(const std::string& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"affix", "start", "end"}, 1);
  const auto [begin, end] = range_of(self, bound);
  if (begin > end) return Value(false);
  const std::string range = slice(self, begin, end, 1);
  const auto fits = [&](const Value& affix) {
    require_defined(affix);
    if (affix.text() == nullptr) {
      throw Fault(fmt::format("{} first arg must be str or a tuple of str, not {}", call.name,
                              type_name(affix)));
    }
    return kAtEnd ? range.ends_with(*affix.text()) : range.starts_with(*affix.text());
  };
  const Sequence* affixes = bound.at(0).sequence();
  if (affixes == nullptr || affixes->kind != Sequence::kTuple) return Value(fits(bound.at(0)));
  return Value(std::any_of(affixes->items.begin(), affixes->items.end(), fits));
}

template <bool kAtEnd>
Value remove_affix_method(const std::string& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"affix"}, 1);
  std::string_view kept = self;
  const std::string& affix = bound.text(0);
  if (kAtEnd && kept.ends_with(affix)) kept.remove_suffix(affix.size());
  if (!kAtEnd && kept.starts_with(affix)) kept.remove_prefix(affix.size());
  return Value(std::string(kept));
}

template <char kSide>
Value pad_method(const std::string& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"width", "fillchar"}, 1);
  const std::string fill = bound.has(1) ? bound.text(1) : " ";
  if (num_characters(fill) != 1) {
    throw Fault("The fill character must be exactly one character long");
  }
  return Value(padded(self, bound.integer(0, 0), kSide, fill));
}

Value zfill_method(const std::string& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"width"}, 1);
  const bool has_sign = self.starts_with('-') || self.starts_with('+');
  const std::string sign = has_sign ? self.substr(0, 1) : std::string();
  const int64_t width = bound.integer(0, 0) - std::ssize(sign);
  return Value(sign + padded(std::string_view(self).substr(sign.size()), width, '>', "0"));
}

Value join_method(const std::string& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"iterable"}, 1);
  std::string result;
  const std::vector<Value> items = elements_of(bound.at(0));
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].text() == nullptr) {
      throw Fault(
          fmt::format("sequence item {}: expected str instance, {} found", i, type_name(items[i])));
    }
    if (i > 0) result += self;
    result += *items[i].text();
    require_size(std::ssize(result));
  }
  return Value(std::move(result));
}

Value replace_method(const std::string& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"old", "new", "count"}, 2);
  return Value(replaced(self, bound.text(0), bound.text(1), bound.integer(2, -1)));
}

Value splitlines_method(const std::string& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"keepends"});
  return list_of(split_lines(self, bound.is_true(0)));
}

Value format_method(const std::string& self, const MethodCall& call) {
  return Value(brace_formatted(call.interpreter, self, call.arguments));
}

Value property_method(const std::string& self, const MethodCall& call) {
  Bound(call.arguments, call.name, {});
  return Value(*satisfies(self, call.name));
}

struct NamedTextMethod {
  std::string_view name;
  TextMethod call;
};

constexpr std::array kTextMethods = {
    NamedTextMethod{"capitalize", changed_text<capitalized>},
    NamedTextMethod{"casefold", changed_text<lower>},
    NamedTextMethod{"center", pad_method<'^'>},
    NamedTextMethod{"count", count_method},
    NamedTextMethod{"endswith", affix_method<true>},
    NamedTextMethod{"find", find_method<false, false>},
    NamedTextMethod{"format", format_method},
    NamedTextMethod{"index", find_method<false, true>},
    NamedTextMethod{"isalnum", property_method},
    NamedTextMethod{"isalpha", property_method},
    NamedTextMethod{"isascii", property_method},
    NamedTextMethod{"isdecimal", property_method},
    NamedTextMethod{"isdigit", property_method},
    NamedTextMethod{"isidentifier", property_method},
    NamedTextMethod{"islower", property_method},
    NamedTextMethod{"isnumeric", property_method},
    NamedTextMethod{"isprintable", property_method},
    NamedTextMethod{"isspace", property_method},
    NamedTextMethod{"istitle", property_method},
    NamedTextMethod{"isupper", property_method},
    NamedTextMethod{"join", join_method},
    NamedTextMethod{"ljust", pad_method<'<'>},
    NamedTextMethod{"lower", changed_text<lower>},
    NamedTextMethod{"lstrip", strip_method<true, false>},
    NamedTextMethod{"partition", partition_method<false>},
    NamedTextMethod{"removeprefix", remove_affix_method<false>},
    NamedTextMethod{"removesuffix", remove_affix_method<true>},
    NamedTextMethod{"replace", replace_method},
    NamedTextMethod{"rfind", find_method<true, false>},
    NamedTextMethod{"rindex", find_method<true, true>},
    NamedTextMethod{"rjust", pad_method<'>'>},
    NamedTextMethod{"rpartition", partition_method<true>},
    NamedTextMethod{"rsplit", split_method<true>},
    NamedTextMethod{"rstrip", strip_method<false, true>},
    NamedTextMethod{"split", split_method<false>},
    NamedTextMethod{"splitlines", splitlines_method},
    NamedTextMethod{"startswith", affix_method<false>},
    NamedTextMethod{"strip", strip_method<true, true>},
    NamedTextMethod{"swapcase", changed_text<swapped_case>},
    NamedTextMethod{"title", changed_text<title>},
    NamedTextMethod{"upper", changed_text<upper>},
    NamedTextMethod{"zfill", zfill_method},
};

TextMethod text_method_of(std::string_view name) {
  const auto place = std::find_if(kTextMethods.begin(), kTextMethods.end(),
                                  [&](const auto& one) { return one.name == name; });
  return place == kTextMethods.end() ? nullptr : place->call;
}

Value mapping_method(const Mapping& self, const MethodCall& call) {
  if (call.name == "get") {
    const Bound bound(call.arguments, call.name, {"key", "default"}, 1);
    const Value* value = self.find(bound.at(0));
    if (value != nullptr) return *value;
    return bound.has(1) ? bound.at(1) : Value();
  }
  Bound(call.arguments, call.name, {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.entries) {
    items.push_back(call.name == "keys"     ? key
                    : call.name == "values" ? value
                                            : Value::tuple({key, value}));
  }
  return Value::view(std::move(items));
}

Value sequence_method(const Sequence& self, const MethodCall& call) {
  const Bound bound(call.arguments, call.name, {"value", "start", "stop"}, 1);
  const int64_t length = std::ssize(self.items);
  const auto place = [&](size_t index, int64_t fallback) {
    const int64_t given = bound.integer(index, fallback);
    return std::clamp<int64_t>(given < 0 ? given + length : given, 0, length);
  };
  int64_t found = 0;
  for (int64_t i = place(1, 0); i < place(2, length); ++i) {
    if (!are_equal(self.items[static_cast<size_t>(i)], bound.at(0))) continue;
    if (call.name == "index") return Value(i);
    ++found;
  }
  if (call.name == "index") throw Fault("the value is not in the list");
  return Value(found);
}

// A method with the value that it belongs to.
class Method final : public Object {
 public:
  Method(Value self, std::string_view name) : self_(std::move(self)), name_(name) {}
  std::string_view type() const override { return "method"; }
  Value call(Interpreter& interpreter, const Arguments& arguments) override {
    return jinja::call_method(interpreter, self_, name_, arguments);
  }

 private:
  Value self_;
  std::string name_;
};

bool is_among(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  if (value.text() != nullptr) return text_method_of(name) != nullptr;
  if (value.mapping() != nullptr) return is_among(name, {"get", "items", "keys", "values", "copy"});
  if (const Sequence* sequence = value.sequence()) {
    if (!sequence->is_indexed()) return false;
    return is_among(name, {"count", "index"}) ||
           (sequence->kind == Sequence::kList && name == "copy");
  }
  return false;
}

bool is_changing_method(const Value& value, std::string_view name) {
  if (value.mapping() != nullptr) {
    return is_among(name, {"clear", "pop", "popitem", "setdefault", "update"});
  }
  const Sequence* sequence = value.sequence();
  return sequence != nullptr && sequence->kind == Sequence::kList &&
         is_among(name,
                  {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"});
}

Value call_method(Interpreter& interpreter, const Value& value, std::string_view name,
                  const Arguments& arguments) {
  const MethodCall call = {interpreter, name, arguments};
  if (const std::string* text = value.text()) return text_method_of(name)(*text, call);
  if (name == "copy") {
    Bound(arguments, name, {});
    return value;
  }
  if (const Mapping* mapping = value.mapping()) return mapping_method(*mapping, call);
  return sequence_method(*value.sequence(), call);
}

Value method_of(const Value& value, std::string_view name) {
  return Value(std::make_shared<Method>(value, name));
}

}  // namespace megatron::jinja
