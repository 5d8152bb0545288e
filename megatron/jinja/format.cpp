#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "megatron/core/printable.h"
#include "megatron/jinja/functions.h"
#include "megatron/jinja/text.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron::jinja {
namespace {

// Python's format specification: [[fill]align][sign][#][0][width][,][.precision][type].
struct Spec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^' or '=': the fill follows the sign
  char sign = 0;
  bool is_alternate = false;
  char grouping = 0;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

int64_t number_at(std::string_view text, size_t& at) {
  int64_t value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = value * 10 + (text[at] - '0');
    require_size(value);
  }
  return value;
}

bool is_alignment(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

Spec spec_of(std::string_view text) {
  Spec spec;
  size_t at = 0;
  if (!text.empty()) {
    const auto first =
        static_cast<size_t>(decode_utf8(text.data(), text.data() + text.size()).length);
    if (first < text.size() && is_alignment(text[first])) {
      spec.fill = std::string(text.substr(0, first));
      spec.align = text[first];
      at = first + 1;
    } else if (is_alignment(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  const auto takes = [&](std::string_view signs) {
    const bool found = at < text.size() && signs.find(text[at]) != std::string_view::npos;
    return found ? text[at++] : '\0';
  };
  if (const char sign = takes("+- ")) spec.sign = sign;
  spec.is_alternate = takes("#") != 0;
  if (takes("0") != 0 && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = number_at(text, at);
  spec.grouping = takes(",_");
  if (takes(".") != 0) spec.precision = number_at(text, at);
  spec.type = takes("sdfFeEgGxXob%");
  if (at < text.size()) {
    throw Fault(fmt::format("the format specification {} is not supported", shortened(text)));
  }
  return spec;
}

std::string grouped(const std::string& digits, char separator) {
  std::string result;
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && i < end && (end - i) % 3 == 0) result += separator;
    result += digits[i];
  }
  return result;
}

// The digits of a number of at least 0.
std::string digits_of(double number, const Spec& spec) {
  const int precision = static_cast<int>(std::clamp<int64_t>(spec.precision, -1, 1000));
  const auto printed = [&](char type, int digits) {
    const std::string form = fmt::format("%{}.*{}", spec.is_alternate ? "#" : "", type);
    std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, form.c_str(), digits, number)),
                     ' ');
    std::snprintf(text.data(), text.size() + 1, form.c_str(), digits, number);
    return text;
  };
  if (!std::isfinite(number)) return std::isnan(number) ? "nan" : "inf";
  if (spec.type == '%') {
    Spec percent = spec;
    percent.type = 'f';
    return digits_of(number * 100, percent) + "%";
  }
  if (spec.type != 0) return printed(spec.type, precision < 0 ? 6 : precision);
  if (precision >= 0) return printed('g', std::max(precision, 1));
  std::string text;
  append_repr(text, Value(number));
  return text;
}

std::string digits_of(int64_t number, const Spec& spec) {
  const uint64_t size =
      number < 0 ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  switch (spec.type) {
    case 'x':
      return (spec.is_alternate ? "0x" : "") + fmt::format("{:x}", size);
    case 'X':
      return (spec.is_alternate ? "0X" : "") + fmt::format("{:X}", size);
    case 'o':
      return (spec.is_alternate ? "0o" : "") + fmt::format("{:o}", size);
    case 'b':
      return (spec.is_alternate ? "0b" : "") + fmt::format("{:b}", size);
    default:
      return fmt::format("{}", size);
  }
}

std::string aligned(const std::string& sign, const std::string& body, const Spec& spec,
                    char default_align) {
  const char align = spec.align == 0 ? default_align : spec.align;
  if (align == '=') {
    const int64_t width = spec.width - std::ssize(sign);
    return sign + padded(body, width, '>', spec.fill);
  }
  if (align == '^') {  // str.format puts the odd one to the right
    const int64_t missing = std::max<int64_t>(0, spec.width - num_characters(sign + body));
    const std::string left = padded(sign + body, spec.width - (missing + 1) / 2, '>', spec.fill);
    return padded(left, spec.width, '<', spec.fill);
  }
  return padded(sign + body, spec.width, align, spec.fill);
}

bool is_any_of(char c, std::string_view all) { return c != 0 && all.find(c) != all.npos; }

// format(value, spec); `is_plain` for an empty specification.
std::string formatted(const Value& value, const Spec& spec, bool is_plain = false) {
  if (is_plain) return text_of(value);
  const auto integer = as_integer(value);
  const bool is_float_type = is_any_of(spec.type, "fFeEgG%");
  const bool is_integer_type = is_any_of(spec.type, "dxXob");
  const bool is_text = value.text() != nullptr;
  const bool fits =
      is_text   ? (spec.type == 0 || spec.type == 's') && spec.sign == 0 && spec.grouping == 0
      : integer ? is_float_type || ((spec.type == 0 || is_integer_type) && spec.precision < 0)
                : as_number(value) && (spec.type == 0 || is_float_type);
  if (!fits) {
    throw Fault(fmt::format("this format does not print a '{}'", type_name(value)));
  }
  if (is_text) {
    const int64_t kept = spec.precision < 0 ? kNoLimit : spec.precision;
    const std::string& text = *value.text();
    return aligned("", slice(text, 0, std::min(kept, num_characters(text)), 1), spec, '<');
  }
  const bool prints_integer = integer && !is_float_type;
  const double number = *as_number(value);
  const bool is_negative = prints_integer ? *integer < 0 : std::signbit(number);
  std::string digits =
      prints_integer ? digits_of(*integer, spec) : digits_of(std::fabs(number), spec);
  if (spec.grouping != 0) digits = grouped(digits, spec.grouping);
  std::string sign;
  if (is_negative) {
    sign = "-";
  } else if (spec.sign != 0 && spec.sign != '-') {
    sign = spec.sign;
  }
  return aligned(sign, digits, spec, '>');
}

// The arguments of text % arguments.
class PercentArguments {
 public:
  explicit PercentArguments(const Value& arguments) : arguments_(arguments) {
    const Sequence* sequence = arguments.sequence();
    if (sequence != nullptr && sequence->kind == Sequence::kTuple) tuple_ = sequence;
  }
  const Value& next() {
    if (tuple_ == nullptr && num_used_++ == 0) return arguments_;
    if (tuple_ != nullptr && num_used_ < tuple_->items.size()) return tuple_->items[num_used_++];
    throw Fault("not enough arguments for format string");
  }
  const Value& named(std::string_view name) {
    if (arguments_.mapping() == nullptr) throw Fault("format requires a mapping");
    const Value* value = arguments_.mapping()->find(name);
    if (value == nullptr) throw Fault(fmt::format("the format names {}", shortened(name)));
    num_used_ = 1;
    return *value;
  }
  void finish() const {
    const bool is_scalar = arguments_.sequence() == nullptr && arguments_.mapping() == nullptr &&
                           !arguments_.is_undefined();
    const bool has_more =
        tuple_ != nullptr ? num_used_ < tuple_->items.size() : num_used_ == 0 && is_scalar;
    if (has_more) throw Fault("not all arguments converted during string formatting");
  }

 private:
  const Value& arguments_;
  const Sequence* tuple_ = nullptr;
  size_t num_used_ = 0;
};

std::string percent_piece(const Value& value, char type, Spec spec) {
  if (type == 's' || type == 'r') {
    std::string text;
    if (type == 's') {
      append_text(text, value);
    } else {
      append_repr(text, value);
    }
    spec.type = 's';
    spec.sign = 0;
    spec.fill = " ";
    if (spec.align == '=') spec.align = '>';
    return formatted(Value(std::move(text)), spec);
  }
  const bool needs_integer = is_any_of(type, "xXo") && !as_integer(value);
  if (!as_number(value) || needs_integer) {
    throw Fault(fmt::format("%{} format: a number is required, not {}", type, type_name(value)));
  }
  spec.type = type == 'i' || type == 'u' ? 'd' : type;
  if (is_any_of(spec.type, "fFeEgG")) return formatted(value, spec);
  const double number = *as_number(value);
  if (std::fabs(number) >= 9.2e18) throw Fault("an integer exceeds 64 bits");
  const auto integer = as_integer(value);
  return formatted(Value(integer ? *integer : static_cast<int64_t>(number)), spec);
}

}  // namespace

std::string percent_formatted(const std::string& text, const Value& arguments) {
  PercentArguments given(arguments);
  std::string result;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      result += text[at];
      continue;
    }
    require_size(std::ssize(result));
    const Value* named = nullptr;
    ++at;
    if (at < text.size() && text[at] == '(') {
      const size_t end = text.find(')', at);
      if (end == std::string::npos) throw Fault("incomplete format key");
      named = &given.named(std::string_view(text).substr(at + 1, end - at - 1));
      at = end + 1;
    }
    Spec spec;
    for (; at < text.size() && is_any_of(text[at], "-+ 0#"); ++at) {
      if (text[at] == '-') spec.align = '<';
      if (text[at] == '+' || (text[at] == ' ' && spec.sign != '+')) spec.sign = text[at];
      if (text[at] == '#') spec.is_alternate = true;
      if (text[at] == '0' && spec.align != '<') {
        spec.align = '=';
        spec.fill = "0";
      }
    }
    if (spec.align == '<') spec.fill = " ";
    if (spec.align == 0) spec.align = '>';
    spec.width = number_at(text, at);
    if (at < text.size() && text[at] == '.') spec.precision = number_at(text, ++at);
    if (at >= text.size()) throw Fault("incomplete format");
    if (text[at] == '%') {
      result += '%';
      continue;
    }
    if (!is_any_of(text[at], "srdiufFeEgGxXo")) {
      throw Fault(fmt::format("the format character {} is not supported",
                              shortened(std::string(1, text[at]))));
    }
    result += percent_piece(named != nullptr ? *named : given.next(), text[at], spec);
  }
  given.finish();
  return result;
}

std::string brace_formatted(Interpreter& interpreter, const std::string& text,
                            const Arguments& arguments) {
  const auto value_of = [&](std::string_view name, size_t& automatic) -> Value {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    const std::string_view head = name.substr(0, end);
    size_t index = automatic;
    Value value;
    const bool is_index = head.find_first_not_of("0123456789") == std::string_view::npos;
    if (is_index) {
      if (head.empty()) ++automatic;
      size_t at = 0;
      if (!head.empty()) index = static_cast<size_t>(number_at(head, at));
      if (index >= arguments.positional.size()) {
        throw Fault("Replacement index out of range for positional args tuple");
      }
      value = arguments.positional[index];
    } else {
      const auto place = std::find_if(arguments.named.begin(), arguments.named.end(),
                                      [&](const auto& one) { return one.first == head; });
      if (place == arguments.named.end()) {
        throw Fault(fmt::format("the format names {}", shortened(head)));
      }
      value = place->second;
    }
    for (std::string_view path = name.substr(end); !path.empty();) {
      const size_t next = std::min(path.find_first_of(".[", 1), path.size());
      std::string_view step = path.substr(1, next - 1);
      if (path[0] == '[') {
        if (!step.ends_with(']')) throw Fault("expected ']' in a format string");
        step.remove_suffix(1);
        size_t at = 0;
        const bool is_number =
            !step.empty() && step.find_first_not_of("0123456789") == std::string_view::npos;
        value = interpreter.item(value,
                                 is_number ? Value(number_at(step, at)) : Value(std::string(step)));
      } else {
        value = interpreter.attribute(value, step);
      }
      require_defined(value);
      path.remove_prefix(next);
    }
    return value;
  };
  std::string result;
  size_t automatic = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const bool is_double = at + 1 < text.size() && text[at + 1] == c;
    if ((c == '{' || c == '}') && is_double) {
      result += c;
      ++at;
    } else if (c == '}') {
      throw Fault("Single '}' encountered in format string");
    } else if (c != '{') {
      result += c;
    } else {
      const size_t end = text.find('}', at);
      if (end == std::string::npos) throw Fault("Single '{' encountered in format string");
      std::string_view field = std::string_view(text).substr(at + 1, end - at - 1);
      const size_t colon = std::min(field.find(':'), field.size());
      std::string_view spec = field.substr(std::min(colon + 1, field.size()));
      std::string_view name = field.substr(0, colon);
      const bool is_repr = name.ends_with("!r");
      if (is_repr || name.ends_with("!s")) name.remove_suffix(2);
      Value value = value_of(name, automatic);
      if (is_repr) {
        std::string text_of_value;
        append_repr(text_of_value, value);
        value = Value(std::move(text_of_value));
      }
      require_size(std::ssize(result));
      result += formatted(value, spec_of(spec), spec.empty());
      at = end;
    }
  }
  return result;
}

}  // namespace megatron::jinja
