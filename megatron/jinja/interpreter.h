#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megatron/jinja/syntax.h"
#include "megatron/jinja/template.h"
#include "megatron/jinja/value.h"

namespace megatron::jinja {

// The variables of a loop, a macro or a block, which sees those around it.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables = {};

  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
};

// One rendering of a template. Names in scopes refer to the syntax tree.
class Interpreter {
 public:
  Interpreter(const Value& variables, const RenderLimits& limits);

  // Throws TemplateError, whose message begins with the line.
  std::string render(const Body& body);

  // Jinja's object.name: an attribute or method, else the element of that key.
  Value attribute(const Value& object, std::string_view name) const;
  // Jinja's object[key]: an element, else the attribute of that name.
  Value item(const Value& object, const Value& key) const;
  Value call(const Value& function, const Arguments& arguments);
  // Calls a macro, or the body of a call block.
  Value call_macro(const Statement& macro, Scope& around, const Arguments& arguments);
  const RenderLimits& limits() const { return limits_; }
  // Counts the work for a result of some bytes or elements. Throws Fault beyond the limit.
  void charge(int64_t size);
  void charge(const Value& value);

 private:
  enum class Flow { kNext, kBreak, kContinue };
  class Level;

  Flow execute(const Body& body, Scope& scope);
  Flow execute(const Statement& statement, Scope& scope);
  Flow execute_if(const Statement& statement, Scope& scope);
  Flow execute_for(const Statement& statement, Scope& scope);
  void execute_with(const Statement& statement, Scope& scope);
  void execute_set_block(const Statement& statement, Scope& scope);
  std::string captured(const Body& body, Scope& scope);
  void assign(const Target& target, const Value& value, Scope& scope) const;
  void append(std::string_view text);

  Value evaluate(const Expression& expression, Scope& scope);
  Value evaluate_kind(const Expression& expression, Scope& scope);
  Value variable(const std::string& name, const Scope& scope) const;
  Value slice(const Expression& expression, Scope& scope);
  Value called(const Expression& expression, Scope& scope, const Value* caller);
  bool compared(const Expression& expression, Scope& scope);
  Value filtered(const Expression& expression, const Value& subject, Scope& scope);
  // The chain of filters of a block.
  Value block_filtered(const Expression& expression, const Value& text, Scope& scope);
  std::vector<Value> evaluated(const std::vector<ExpressionPtr>& operands, Scope& scope);
  Arguments arguments(const Expression& expression, Scope& scope);

  Value variables_;
  const RenderLimits& limits_;
  std::string* out_ = nullptr;
  int64_t line_ = 1;
  int64_t steps_ = 0;
  int64_t depth_ = 0;
};

// a sign b, for "+", "-", "*", "/", "//", "%" and "**". Throws Fault.
Value binary(std::string_view sign, const Value& a, const Value& b);

}  // namespace megatron::jinja
