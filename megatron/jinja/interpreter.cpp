#include "megatron/jinja/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "megatron/core/printable.h"
#include "megatron/jinja/functions.h"
#include "megatron/jinja/lexer.h"
#include "megatron/jinja/text.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron::jinja {
namespace {

constexpr int64_t kMaxLevels = 800;  // of statements and expressions that are being evaluated

// The variable `loop`.
class Loop final : public Object {
 public:
  explicit Loop(const std::vector<Value>& items) : items_(items) {}
  std::string_view type() const override { return "loop"; }
  void advance() { ++index_; }

  std::optional<Value> attribute(std::string_view name) const override {
    const int64_t length = std::ssize(items_);
    if (name == "index") return Value(index_ + 1);
    if (name == "index0") return Value(index_);
    if (name == "first") return Value(index_ == 0);
    if (name == "last") return Value(index_ + 1 == length);
    if (name == "length") return Value(length);
    if (name == "revindex") return Value(length - index_);
    if (name == "revindex0") return Value(length - index_ - 1);
    if (name == "depth") return Value(int64_t{1});
    if (name == "depth0") return Value(int64_t{0});
    if (name == "previtem") return item(index_ - 1, "there is no previous item");
    if (name == "nextitem") return item(index_ + 1, "there is no next item");
    return std::nullopt;
  }

  std::optional<Value> call_method(std::string_view name, const Arguments& arguments) override {
    if (name == "cycle") {
      if (arguments.positional.empty()) throw Fault("no items for cycling given");
      return arguments.positional[static_cast<size_t>(index_) % arguments.positional.size()];
    }
    if (name != "changed") return std::nullopt;
    Value values = Value::tuple(arguments.positional);
    const bool is_same = are_equal(last_, values);
    last_ = std::move(values);
    return Value(!is_same);
  }
  Value call(Interpreter&, const Arguments&) override {
    throw Fault("recursive loops are not supported; use a macro");
  }

 private:
  Value item(int64_t index, const char* problem) const {
    if (index < 0 || index >= std::ssize(items_)) return Value::undefined(problem);
    return items_[static_cast<size_t>(index)];
  }

  const std::vector<Value>& items_;
  int64_t index_ = -1;
  Value last_;  // arguments of changed()
};

class Macro final : public Object {
 public:
  Macro(const Statement& statement, Scope& scope) : statement_(statement), scope_(scope) {}
  std::string_view type() const override { return "macro"; }
  std::optional<Value> attribute(std::string_view name) const override {
    if (name == "name") return Value(statement_.text);
    return std::nullopt;
  }
  Value call(Interpreter& interpreter, const Arguments& arguments) override {
    return interpreter.call_macro(statement_, scope_, arguments);
  }

 private:
  const Statement& statement_;
  Scope& scope_;  // outlives the macro, which no list, dict or namespace holds
};

// "'dict object' has no attribute 'x'", Jinja's text for a missing element.
Value missing(const Value& object, const Value& key) {
  const std::string owner = object.is_none() ? "None" : fmt::format("{} object", type_name(object));
  if (const std::string* name = key.text()) {
    return Value::undefined(fmt::format("'{}' has no attribute '{}'", owner, shortened(*name)));
  }
  std::string place;
  append_repr(place, key);
  return Value::undefined(fmt::format("{} has no element {}", owner, shortened(place)));
}

// The element of a list or text at a position, counted from the end if negative.
const Value* element_at(const Sequence& sequence, int64_t index) {
  if (index < 0) index += std::ssize(sequence.items);
  if (index < 0 || index >= std::ssize(sequence.items)) return nullptr;
  return &sequence.items[static_cast<size_t>(index)];
}

[[noreturn]] void refuse_operands(std::string_view sign, const Value& a, const Value& b) {
  require_defined(a);
  require_defined(b);
  throw Fault(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", sign, type_name(a),
                          type_name(b)));
}

int64_t floor_divided(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) throw Fault("0.0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  for (int64_t i = 0; i < exponent && base != 1; ++i) {
    if (base == 0 || base == -1) return Value(exponent % 2 != 0 ? base : base * base);
    result = checked_multiply(result, base);
  }
  return Value(result);
}

Value integers(std::string_view sign, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  if (sign == "+") {
    overflows = __builtin_add_overflow(a, b, &result);
  } else if (sign == "-") {
    overflows = __builtin_sub_overflow(a, b, &result);
  } else if (sign == "*") {
    result = checked_multiply(a, b);
  } else if (sign == "**") {
    return integer_power(a, b);
  } else {
    if (b == 0)
      throw Fault(sign == "/" ? "division by zero" : "integer division or modulo by zero");
    if (sign == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
    if (b == -1) return sign == "%" ? Value(int64_t{0}) : integers("*", a, -1);
    result = floor_divided(a, b);
    if (sign == "%") result = a - result * b;
  }
  if (overflows) throw Fault("an integer exceeds 64 bits");
  return Value(result);
}

Value doubles(std::string_view sign, double a, double b) {
  if (sign == "+") return Value(a + b);
  if (sign == "-") return Value(a - b);
  if (sign == "*") return Value(a * b);
  if (sign == "**") return Value(std::pow(a, b));
  if (b == 0) throw Fault("float division by zero");
  if (sign == "/") return Value(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (sign == "%") return Value(rest == 0 ? std::copysign(0.0, b) : rest);
  return Value(std::floor((a - rest) / b + 0.5));
}

Value repeated(const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (const std::string* text = value.text()) {
    require_size(checked_multiply(std::ssize(*text), times));
    std::string result;
    for (int64_t i = 0; i < times && !text->empty(); ++i) result += *text;
    return Value(std::move(result));
  }
  const Sequence& sequence = *value.sequence();
  require_size(checked_multiply(std::ssize(sequence.items), times));
  std::vector<Value> items;
  for (int64_t i = 0; i < times && !sequence.items.empty(); ++i) {
    items.insert(items.end(), sequence.items.begin(), sequence.items.end());
  }
  return sequence.kind == Sequence::kTuple ? Value::tuple(std::move(items))
                                           : Value::list(std::move(items));
}

bool is_list_or_tuple(const Value& value) {
  return value.sequence() != nullptr && value.sequence()->is_indexed();
}

// The bounds of a slice of `length` elements, as in Python.
struct Bounds {
  int64_t begin;
  int64_t end;
  int64_t step;
};

int64_t bound(const Value& value, int64_t fallback, int64_t length, int64_t least, int64_t most) {
  if (value.is_none()) return fallback;
  require_defined(value);
  const auto index = as_integer(value);
  if (!index) throw Fault("slice indices must be integers or None");
  return std::clamp(*index < 0 ? *index + length : *index, least, most);
}

Bounds bounds_of(const std::vector<Value>& values, int64_t length) {
  int64_t step = 1;
  if (!values[2].is_none()) {
    const auto given = as_integer(values[2]);
    if (!given) throw Fault("slice indices must be integers or None");
    if (*given == 0) throw Fault("slice step cannot be zero");
    step = std::clamp(*given, -kNoLimit / 2, kNoLimit / 2);
  }
  if (step > 0) {
    return {bound(values[0], 0, length, 0, length), bound(values[1], length, length, 0, length),
            step};
  }
  return {bound(values[0], length - 1, length, -1, length - 1),
          bound(values[1], -1, length, -1, length - 1), step};
}

}  // namespace

Value binary(std::string_view sign, const Value& a, const Value& b) {
  const auto first = as_integer(a);
  const auto second = as_integer(b);
  if (first && second) return integers(sign, *first, *second);
  if (as_number(a) && as_number(b)) return doubles(sign, *as_number(a), *as_number(b));
  if (sign == "+") {
    if (a.text() != nullptr && b.text() != nullptr) return Value(*a.text() + *b.text());
    if (is_list_or_tuple(a) && is_list_or_tuple(b) && a.sequence()->kind == b.sequence()->kind) {
      std::vector<Value> items = a.sequence()->items;
      items.insert(items.end(), b.sequence()->items.begin(), b.sequence()->items.end());
      return a.sequence()->kind == Sequence::kTuple ? Value::tuple(std::move(items))
                                                    : Value::list(std::move(items));
    }
  }
  if (sign == "*") {
    if (second && (a.text() != nullptr || is_list_or_tuple(a))) return repeated(a, *second);
    if (first && (b.text() != nullptr || is_list_or_tuple(b))) return repeated(b, *first);
  }
  if (sign == "%" && a.text() != nullptr) return Value(percent_formatted(*a.text(), b));
  refuse_operands(sign, a, b);
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent) {
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, old] : variables) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  variables.emplace_back(name, std::move(value));
}

class Interpreter::Level {
 public:
  explicit Level(int64_t& depth) : depth_(depth) {
    if (++depth_ > kMaxLevels) {
      --depth_;
      throw Fault("macros call each other too deeply");
    }
  }
  ~Level() { --depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int64_t& depth_;
};

Interpreter::Interpreter(const Value& variables, const RenderLimits& limits)
    : variables_(variables), limits_(limits) {}

std::string Interpreter::render(const Body& body) {
  Scope scope;
  try {
    return captured(body, scope);
  } catch (const Fault& fault) {
    fail_at(line_, fault.what());
  }
}

void Interpreter::charge(int64_t size) {
  steps_ += 1 + size / 16;
  if (steps_ > limits_.max_steps) {
    throw Fault(fmt::format("the template takes more than {} steps", limits_.max_steps));
  }
}

void Interpreter::charge(const Value& value) {
  if (const std::string* text = value.text()) return charge(std::ssize(*text));
  if (const Sequence* sequence = value.sequence()) return charge(std::ssize(sequence->items));
  if (const Mapping* mapping = value.mapping()) return charge(std::ssize(mapping->entries));
  charge(0);
}

void Interpreter::append(std::string_view text) {
  const int64_t size = std::ssize(*out_) + static_cast<int64_t>(text.size());
  if (size > limits_.max_bytes) {
    throw Fault(fmt::format("the output is longer than {} bytes", limits_.max_bytes));
  }
  charge(static_cast<int64_t>(text.size()));
  *out_ += text;
}

std::string Interpreter::captured(const Body& body, Scope& scope) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  execute(body, scope);
  out_ = outer;
  return text;
}

// Statements.

Interpreter::Flow Interpreter::execute(const Body& body, Scope& scope) {
  const Level level(depth_);
  for (const auto& statement : body) {
    const Flow flow = execute(*statement, scope);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Statement& statement, Scope& scope) {
  line_ = statement.line;
  charge(0);
  switch (statement.kind) {
    case StatementKind::kText:
      append(statement.text);
      return Flow::kNext;
    case StatementKind::kOutput: {
      const Value value = evaluate(*statement.expression, scope);
      append(value.text() != nullptr ? *value.text() : text_of(value));
      return Flow::kNext;
    }
    case StatementKind::kIf:
      return execute_if(statement, scope);
    case StatementKind::kFor:
      return execute_for(statement, scope);
    case StatementKind::kSet:
      assign(statement.target, evaluate(*statement.expression, scope), scope);
      return Flow::kNext;
    case StatementKind::kSetBlock:
      execute_set_block(statement, scope);
      return Flow::kNext;
    case StatementKind::kMacro:
      scope.set(statement.text, Value(std::make_shared<Macro>(statement, scope)));
      return Flow::kNext;
    case StatementKind::kCall: {
      const Value caller(std::make_shared<Macro>(statement, scope));
      append(text_of(called(*statement.expression, scope, &caller)));
      return Flow::kNext;
    }
    case StatementKind::kFilter: {
      Scope inner = {&scope};
      const Value text(captured(statement.body, inner));
      append(text_of(block_filtered(*statement.expression, text, scope)));
      return Flow::kNext;
    }
    case StatementKind::kWith:
      execute_with(statement, scope);
      return Flow::kNext;
    case StatementKind::kScope: {
      Scope inner = {&scope};
      return execute(statement.body, inner);
    }
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_if(const Statement& statement, Scope& scope) {
  for (const Branch& branch : statement.branches) {
    if (is_true(evaluate(*branch.condition, scope))) return execute(branch.body, scope);
  }
  return execute(statement.other, scope);
}

Interpreter::Flow Interpreter::execute_for(const Statement& statement, Scope& scope) {
  std::vector<Value> items = elements_of(evaluate(*statement.expression, scope));
  charge(std::ssize(items));
  if (statement.condition != nullptr) {
    std::vector<Value> kept;
    for (Value& item : items) {
      Scope inner = {&scope};
      assign(statement.target, item, inner);
      if (is_true(evaluate(*statement.condition, inner))) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    Scope inner = {&scope};
    return execute(statement.other, inner);
  }
  const auto loop = std::make_shared<Loop>(items);
  for (const Value& item : items) {
    loop->advance();
    Scope inner = {&scope};
    inner.set("loop", Value(loop));
    assign(statement.target, item, inner);
    if (execute(statement.body, inner) == Flow::kBreak) break;
  }
  return Flow::kNext;
}

void Interpreter::execute_with(const Statement& statement, Scope& scope) {
  Scope inner = {&scope};
  for (const auto& [target, value] : statement.assignments) {
    assign(target, evaluate(*value, scope), inner);
  }
  execute(statement.body, inner);
}

void Interpreter::execute_set_block(const Statement& statement, Scope& scope) {
  Scope inner = {&scope};
  Value value(captured(statement.body, inner));
  if (statement.expression != nullptr) value = block_filtered(*statement.expression, value, scope);
  assign(statement.target, value, scope);
}

void Interpreter::assign(const Target& target, const Value& value, Scope& scope) const {
  if (!target.attribute.empty()) {
    const Value* found = scope.find(target.name);
    auto* space = found == nullptr ? nullptr : dynamic_cast<Namespace*>(found->object());
    if (space == nullptr) {
      throw Fault(fmt::format("cannot assign attribute {} of {}, which is not a namespace",
                              target.attribute, target.name));
    }
    space->set(target.attribute, value);
    return;
  }
  if (target.parts.empty()) return scope.set(target.name, value);
  const std::vector<Value> items = elements_of(value);
  if (items.size() != target.parts.size()) {
    throw Fault(
        fmt::format("{} values for {} names of an assignment", items.size(), target.parts.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
}

Value Interpreter::call_macro(const Statement& macro, Scope& around, const Arguments& arguments) {
  const Level level(depth_);
  const int64_t line = line_;
  const std::string name = macro.text.empty() ? "caller" : macro.text;
  Scope inner = {&around};
  inner.set("caller", Value::undefined("No caller defined"));
  std::vector<Value> more;
  Mapping more_named;
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    if (i < macro.parameters.size()) {
      inner.set(macro.parameters[i].name, arguments.positional[i]);
    } else {
      more.push_back(arguments.positional[i]);
    }
  }
  for (const auto& [key, value] : arguments.named) {
    const auto place = std::find_if(macro.parameters.begin(), macro.parameters.end(),
                                    [&key = key](const Parameter& one) { return one.name == key; });
    const auto index = place - macro.parameters.begin();
    if (place != macro.parameters.end() && index >= std::ssize(arguments.positional)) {
      inner.set(place->name, value);
    } else if (key == "caller") {
      inner.set("caller", value);
    } else if (macro.takes_kwargs) {
      more_named.set(key, value);
    } else {
      throw Fault(fmt::format("macro '{}' takes no keyword argument '{}'", name, key));
    }
  }
  if (!more.empty() && !macro.takes_varargs) {
    throw Fault(fmt::format("macro '{}' takes not more than {} argument(s)", name,
                            macro.parameters.size()));
  }
  if (macro.takes_varargs) inner.set("varargs", Value::tuple(std::move(more)));
  if (macro.takes_kwargs) inner.set("kwargs", Value::mapping(std::move(more_named)));
  const auto is_set = [&](const Parameter& one) {
    return std::any_of(inner.variables.begin() + 1, inner.variables.end(),
                       [&](const auto& known) { return known.first == one.name; });
  };
  for (const Parameter& parameter : macro.parameters) {
    if (is_set(parameter)) continue;
    inner.set(parameter.name, parameter.fallback != nullptr
                                  ? evaluate(*parameter.fallback, inner)
                                  : Value::undefined(fmt::format("parameter '{}' was not provided",
                                                                 parameter.name)));
  }
  Value result(captured(macro.body, inner));
  line_ = line;
  return result;
}

// Expressions.

Value Interpreter::evaluate(const Expression& expression, Scope& scope) {
  const Level level(depth_);
  line_ = expression.line;
  Value result = evaluate_kind(expression, scope);
  switch (expression.kind) {
    case ExpressionKind::kConstant:
    case ExpressionKind::kName:
    case ExpressionKind::kAttribute:
    case ExpressionKind::kItem:
      charge(0);  // the value exists already
      break;
    default:
      charge(result);
  }
  return result;
}

Value Interpreter::evaluate_kind(const Expression& expression, Scope& scope) {
  const auto operand = [&](size_t index) { return evaluate(*expression.operands[index], scope); };
  switch (expression.kind) {
    case ExpressionKind::kConstant:
      return expression.value;
    case ExpressionKind::kName:
      return variable(expression.name, scope);
    case ExpressionKind::kList:
      return Value::list(evaluated(expression.operands, scope));
    case ExpressionKind::kTuple:
      return Value::tuple(evaluated(expression.operands, scope));
    case ExpressionKind::kDict: {
      Mapping mapping;
      for (size_t i = 0; i < expression.operands.size(); i += 2) {
        Value key = operand(i);
        mapping.set(std::move(key), operand(i + 1));
      }
      return Value::mapping(std::move(mapping));
    }
    case ExpressionKind::kAttribute: {
      const Value object = operand(0);
      line_ = expression.line;
      return attribute(object, expression.name);
    }
    case ExpressionKind::kItem: {
      const Value object = operand(0);
      const Value key = operand(1);
      line_ = expression.line;
      return item(object, key);
    }
    case ExpressionKind::kSlice:
      return slice(expression, scope);
    case ExpressionKind::kCall:
      return called(expression, scope, nullptr);
    case ExpressionKind::kFilter:
      return filtered(expression, operand(0), scope);
    case ExpressionKind::kTest: {
      const Value subject = operand(0);
      const Arguments given = arguments(expression, scope);
      line_ = expression.line;
      return Value(apply_test(*this, expression.name, subject, given));
    }
    case ExpressionKind::kNot:
      return Value(!is_true(operand(0)));
    case ExpressionKind::kAnd: {
      Value left = operand(0);
      return is_true(left) ? operand(1) : left;
    }
    case ExpressionKind::kOr: {
      Value left = operand(0);
      return is_true(left) ? left : operand(1);
    }
    case ExpressionKind::kConditional:
      if (is_true(operand(0))) return operand(1);
      if (expression.operands[2] != nullptr) return operand(2);
      return Value::undefined("the condition is false and there is no else");
    case ExpressionKind::kCompare:
      return Value(compared(expression, scope));
    case ExpressionKind::kConcatenate: {
      std::string text;
      for (const Value& value : evaluated(expression.operands, scope)) append_text(text, value);
      return Value(std::move(text));
    }
    case ExpressionKind::kUnary: {
      const Value value = operand(0);
      require_defined(value);
      if (!as_number(value)) {
        throw Fault(fmt::format("bad operand type for unary {}: '{}'", expression.signs[0],
                                type_name(value)));
      }
      const bool is_negative = expression.signs[0] == "-";
      if (const auto number = value.get_if<double>())
        return Value(is_negative ? -*number : *number);
      return integers("*", *as_integer(value), is_negative ? -1 : 1);
    }
    case ExpressionKind::kBinary: {
      const Value a = operand(0);
      const Value b = operand(1);
      line_ = expression.line;
      return binary(expression.signs[0], a, b);
    }
  }
  return {};
}

Value Interpreter::variable(const std::string& name, const Scope& scope) const {
  if (const Value* value = scope.find(name)) return *value;
  if (const Value* value = variables_.mapping()->find(name)) return *value;
  if (auto function = function_of(name)) return *function;
  return Value::undefined(fmt::format("'{}' is undefined", shortened(name)));
}

std::vector<Value> Interpreter::evaluated(const std::vector<ExpressionPtr>& operands,
                                          Scope& scope) {
  std::vector<Value> values;
  values.reserve(operands.size());
  for (const ExpressionPtr& operand : operands) values.push_back(evaluate(*operand, scope));
  return values;
}

Arguments Interpreter::arguments(const Expression& expression, Scope& scope) {
  Arguments result;
  const size_t first_named = expression.operands.size() - expression.names.size();
  for (size_t i = 1; i < expression.operands.size(); ++i) {
    Value value = evaluate(*expression.operands[i], scope);
    if (i < first_named) {
      result.positional.push_back(std::move(value));
    } else {
      result.named.emplace_back(expression.names[i - first_named], std::move(value));
    }
  }
  return result;
}

Value Interpreter::attribute(const Value& object, std::string_view name) const {
  require_defined(object);
  if (const Object* known = object.object()) {
    if (auto value = known->attribute(name)) return *value;
  } else if (is_changing_method(object, name)) {
    return Value::undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe", name, type_name(object)));
  } else if (has_method(object, name)) {
    return method_of(object, name);
  } else if (const Mapping* mapping = object.mapping()) {
    if (const Value* value = mapping->find(name)) return *value;
  }
  return missing(object, Value(std::string(name)));
}

Value Interpreter::item(const Value& object, const Value& key) const {
  require_defined(object);
  if (const Mapping* mapping = object.mapping()) {
    if (const Value* value = mapping->find(key)) return *value;
  } else if (const auto index = as_integer(key)) {
    const Sequence* sequence = object.sequence();
    if (sequence != nullptr && sequence->is_indexed()) {
      if (const Value* element = element_at(*sequence, *index)) return *element;
    } else if (const std::string* text = object.text()) {
      const int64_t length = num_characters(*text);
      const int64_t place = *index < 0 ? *index + length : *index;
      if (place >= 0 && place < length) return Value(jinja::slice(*text, place, place + 1, 1));
    }
  }
  const std::string* name = key.text();
  const bool has_attribute =
      name != nullptr && (object.object() != nullptr || has_method(object, *name));
  return has_attribute ? attribute(object, *name) : missing(object, key);
}

Value Interpreter::slice(const Expression& expression, Scope& scope) {
  const Value object = evaluate(*expression.operands[0], scope);
  std::vector<Value> bounds;
  for (size_t i = 1; i < 4; ++i) {
    bounds.push_back(expression.operands[i] == nullptr ? Value()
                                                       : evaluate(*expression.operands[i], scope));
  }
  line_ = expression.line;
  require_defined(object);
  if (const std::string* text = object.text()) {
    const auto [begin, end, step] = bounds_of(bounds, num_characters(*text));
    return Value(jinja::slice(*text, begin, end, step));
  }
  if (!is_list_or_tuple(object)) {
    throw Fault(fmt::format("'{}' object has no slices", type_name(object)));
  }
  const Sequence& sequence = *object.sequence();
  const auto [begin, end, step] = bounds_of(bounds, std::ssize(sequence.items));
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
    items.push_back(sequence.items[static_cast<size_t>(i)]);
  }
  return sequence.kind == Sequence::kTuple ? Value::tuple(std::move(items))
                                           : Value::list(std::move(items));
}

// `caller` is the body of a call block, or null.
Value Interpreter::called(const Expression& expression, Scope& scope, const Value* caller) {
  const Expression& function = *expression.operands[0];
  const auto given = [&] {
    Arguments result = arguments(expression, scope);
    if (caller != nullptr) result.named.emplace_back("caller", *caller);
    line_ = expression.line;
    return result;
  };
  if (function.kind == ExpressionKind::kAttribute) {
    const Value object = evaluate(*function.operands[0], scope);
    if (Object* known = object.object()) {
      const Arguments arguments_given = given();
      if (auto result = known->call_method(function.name, arguments_given)) return *result;
      return call(attribute(object, function.name), arguments_given);
    }
    if (!is_changing_method(object, function.name) && has_method(object, function.name)) {
      return call_method(*this, object, function.name, given());
    }
    const Value method = attribute(object, function.name);
    return call(method, given());
  }
  const Value callee = evaluate(function, scope);
  return call(callee, given());
}

Value Interpreter::call(const Value& function, const Arguments& arguments) {
  require_defined(function);
  if (Object* object = function.object()) return object->call(*this, arguments);
  throw Fault(fmt::format("'{}' object is not callable", type_name(function)));
}

bool Interpreter::compared(const Expression& expression, Scope& scope) {
  Value left = evaluate(*expression.operands[0], scope);
  for (size_t i = 0; i < expression.signs.size(); ++i) {
    Value right = evaluate(*expression.operands[i + 1], scope);
    line_ = expression.line;
    const std::string& sign = expression.signs[i];
    bool holds = false;
    if (sign == "==") {
      holds = are_equal(left, right);
    } else if (sign == "!=") {
      holds = !are_equal(left, right);
    } else if (sign == "in") {
      holds = contains(right, left);
    } else if (sign == "not in") {
      holds = !contains(right, left);
    } else {
      const bool is_swapped = sign[0] == '>';
      const Value& a = is_swapped ? right : left;
      const Value& b = is_swapped ? left : right;
      holds = is_less(a, b, sign) || (sign.size() == 2 && are_equal(a, b));
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::filtered(const Expression& expression, const Value& subject, Scope& scope) {
  const Arguments given = arguments(expression, scope);
  line_ = expression.line;
  return apply_filter(*this, expression.name, subject, given);
}

Value Interpreter::block_filtered(const Expression& expression, const Value& text, Scope& scope) {
  if (expression.operands[0] == nullptr) return filtered(expression, text, scope);
  return filtered(expression, block_filtered(*expression.operands[0], text, scope), scope);
}

}  // namespace megatron::jinja
