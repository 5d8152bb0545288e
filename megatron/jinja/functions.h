#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "megatron/jinja/interpreter.h"
#include "megatron/jinja/value.h"

// The names that templates may use without defining them. All throw Fault.
namespace megatron::jinja {

bool is_filter(std::string_view name);
Value apply_filter(Interpreter& interpreter, std::string_view name, const Value& subject,
                   const Arguments& arguments);

bool is_test(std::string_view name);
bool apply_test(Interpreter& interpreter, std::string_view name, const Value& subject,
                const Arguments& arguments);

// range, dict, namespace, cycler, joiner, raise_exception, strftime_now.
std::optional<Value> function_of(std::string_view name);

// The methods of str, list, tuple and dict. call_method requires has_method.
bool has_method(const Value& value, std::string_view name);
Value call_method(Interpreter& interpreter, const Value& value, std::string_view name,
                  const Arguments& arguments);
// The method as a value.
Value method_of(const Value& value, std::string_view name);
// A method that changes its list or dict, which transformers' environment refuses.
bool is_changing_method(const Value& value, std::string_view name);

// The attributes of a namespace, which assignments change.
class Namespace final : public Object {
 public:
  explicit Namespace(Mapping attributes) : attributes_(std::move(attributes)) {}
  std::string_view type() const override { return "namespace"; }
  bool is_callable() const override { return false; }
  std::optional<Value> attribute(std::string_view name) const override;
  void set(std::string_view name, Value value) { attributes_.set(name, std::move(value)); }

 private:
  Mapping attributes_;
};

// text % arguments, and text.format(arguments).
std::string percent_formatted(const std::string& text, const Value& arguments);
std::string brace_formatted(Interpreter& interpreter, const std::string& text,
                            const Arguments& arguments);

// json.dumps. Throws Fault for values that JSON lacks.
struct JsonFormat {
  bool ensure_ascii = false;
  std::optional<std::string> indent = std::nullopt;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
std::string json_of(const Value& value, const JsonFormat& format);

// The places of a call's arguments in the order of its parameters, as Python binds them.
class Bound {
 public:
  // Throws Fault for an unknown name, too many arguments, or fewer than `required`.
  Bound(const Arguments& arguments, std::string_view function,
        std::initializer_list<std::string_view> parameters, size_t required = 0);

  // Null for an argument that is absent.
  const Value* find(size_t index) const { return values_[index]; }
  bool has(size_t index) const { return values_[index] != nullptr; }
  const Value& at(size_t index) const { return *values_[index]; }
  bool is_true(size_t index) const { return has(index) && jinja::is_true(at(index)); }
  int64_t integer(size_t index, int64_t fallback) const;
  // A text; Throws Fault for other types.
  const std::string& text(size_t index) const;
  std::optional<std::string_view> optional_text(size_t index) const;

 private:
  std::string function_;
  std::vector<const Value*> values_;
};

}  // namespace megatron::jinja
