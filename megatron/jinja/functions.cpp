#include "megatron/jinja/functions.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <ctime>

#include "megatron/jinja/template.h"

namespace megatron::jinja {
namespace {

constexpr int64_t kMaxRange = 100000;  // as Jinja's sandbox

using GlobalFunction = Value (*)(Interpreter&, const Arguments&);

class Function final : public Object {
 public:
  explicit Function(GlobalFunction function) : function_(function) {}
  std::string_view type() const override { return "function"; }
  Value call(Interpreter& interpreter, const Arguments& arguments) override {
    return function_(interpreter, arguments);
  }

 private:
  GlobalFunction function_;
};

// Returns nothing at its first call, later the separator.
class Joiner final : public Object {
 public:
  explicit Joiner(std::string separator) : separator_(std::move(separator)) {}
  std::string_view type() const override { return "joiner"; }
  Value call(Interpreter&, const Arguments&) override {
    return Value(std::exchange(is_used_, true) ? separator_ : std::string());
  }

 private:
  std::string separator_;
  bool is_used_ = false;
};

class Cycler final : public Object {
 public:
  explicit Cycler(std::vector<Value> items) : items_(std::move(items)) {}
  std::string_view type() const override { return "cycler"; }
  bool is_callable() const override { return false; }
  std::optional<Value> attribute(std::string_view name) const override {
    return name == "current" ? std::optional(items_[place_]) : std::nullopt;
  }
  std::optional<Value> call_method(std::string_view name, const Arguments&) override {
    if (name == "next") {
      const size_t place = std::exchange(place_, (place_ + 1) % items_.size());
      return items_[place];
    }
    if (name != "reset") return std::nullopt;
    place_ = 0;
    return Value();
  }

 private:
  std::vector<Value> items_;
  size_t place_ = 0;
};

Value range_function(Interpreter&, const Arguments& arguments) {
  const Bound bound(arguments, "range", {"start", "stop", "step"}, 1);
  int64_t begin = 0;
  int64_t end = bound.integer(0, 0);
  const int64_t step = bound.integer(2, 1);
  if (bound.has(1)) {
    begin = end;
    end = bound.integer(1, 0);
  }
  if (step == 0) throw Fault("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (std::ssize(items) >= kMaxRange) {
      throw Fault(fmt::format("a range of more than {} elements is too long", kMaxRange));
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(std::move(items));
}

Value dict_function(Interpreter&, const Arguments& arguments) {
  Mapping mapping;
  if (arguments.positional.size() > 1) throw Fault("dict expected at most 1 argument");
  for (const Value& given : arguments.positional) {
    if (given.mapping() != nullptr) {
      mapping = *given.mapping();
      continue;
    }
    for (const Value& pair : elements_of(given)) {
      const std::vector<Value> parts = elements_of(pair);
      if (parts.size() != 2) throw Fault("dict needs pairs of a key and a value");
      mapping.set(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) mapping.set(name, value);
  return Value::mapping(std::move(mapping));
}

Value namespace_function(Interpreter& interpreter, const Arguments& arguments) {
  const Value attributes = dict_function(interpreter, arguments);
  return Value(std::make_shared<Namespace>(*attributes.mapping()));
}

Value joiner_function(Interpreter&, const Arguments& arguments) {
  const Bound bound(arguments, "joiner", {"sep"});
  return Value(std::shared_ptr<Object>(
      std::make_shared<Joiner>(bound.has(0) ? bound.text(0) : std::string(", "))));
}

Value cycler_function(Interpreter&, const Arguments& arguments) {
  if (arguments.positional.empty()) throw Fault("at least one item has to be provided");
  return Value(std::make_shared<Cycler>(arguments.positional));
}

Value raise_function(Interpreter&, const Arguments& arguments) {
  const Bound bound(arguments, "raise_exception", {"message"}, 1);
  throw RaisedByTemplate(text_of(bound.at(0)));
}

Value strftime_function(Interpreter& interpreter, const Arguments& arguments) {
  const Bound bound(arguments, "strftime_now", {"format"}, 1);
  const std::string& format = bound.text(0);
  const std::time_t now =
      interpreter.limits().now
          ? static_cast<std::time_t>(*interpreter.limits().now)
          : std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm local = {};
  localtime_r(&now, &local);
  if (format.empty()) return Value(std::string());
  std::array<char, 1024> text;
  const size_t size = std::strftime(text.data(), text.size(), format.c_str(), &local);
  return Value(std::string(text.data(), size));
}

struct Global {
  std::string_view name;
  GlobalFunction function;
};

constexpr std::array kGlobals = {
    Global{"cycler", cycler_function},         Global{"dict", dict_function},
    Global{"joiner", joiner_function},         Global{"namespace", namespace_function},
    Global{"raise_exception", raise_function}, Global{"range", range_function},
    Global{"strftime_now", strftime_function},
};

}  // namespace

std::optional<Value> Namespace::attribute(std::string_view name) const {
  const Value* value = attributes_.find(name);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<Value> function_of(std::string_view name) {
  for (const Global& global : kGlobals) {
    if (global.name == name) {
      return Value(std::make_shared<Function>(global.function));
    }
  }
  return std::nullopt;
}

}  // namespace megatron::jinja
