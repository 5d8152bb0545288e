#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megatron/jinja/value.h"

// The syntax tree of a template.
namespace megatron::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

enum class ExpressionKind {
  kConstant,     // value
  kName,         // name
  kList,         // operands
  kTuple,        // operands
  kDict,         // operands: key, value, key, value, ...
  kAttribute,    // operands[0].name
  kItem,         // operands[0][operands[1]]
  kSlice,        // operands[0][operands[1]:operands[2]:operands[3]], null where absent
  kCall,         // operands[0](operands[1], ..., names[0]=..., ...)
  kFilter,       // operands[0] | name(operands[1], ..., names[0]=..., ...)
  kTest,         // operands[0] is name(...)
  kNot,          // operands[0]
  kAnd,          // operands[0], operands[1]
  kOr,           // operands[0], operands[1]
  kConditional,  // operands[1] if operands[0] else operands[2], null where absent
  kCompare,      // operands[0] signs[0] operands[1] signs[1] ...
  kConcatenate,  // operands[0] ~ operands[1] ~ ...
  kUnary,        // signs[0] operands[0]
  kBinary,       // operands[0] signs[0] operands[1]
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int64_t line = 0;
  int64_t depth = 1;
  Value value = {};
  std::string name = {};
  std::vector<ExpressionPtr> operands = {};  // keyword arguments last
  std::vector<std::string> names = {};       // of keyword arguments
  std::vector<std::string> signs = {};       // "+", "==", "not in"
};

struct Statement;
using Body = std::vector<std::unique_ptr<const Statement>>;

// The left side of an assignment: a name, an attribute of a namespace, or a list of targets.
struct Target {
  std::string name = {};
  std::string attribute = {};
  std::vector<Target> parts = {};
};

struct Parameter {
  std::string name;
  ExpressionPtr fallback;  // or null
};

enum class StatementKind {
  kText,      // text
  kOutput,    // {{ expression }}
  kIf,        // branches, other
  kFor,       // for target in expression if condition: body, else: other
  kSet,       // set target = expression
  kSetBlock,  // set target | expression: body; the expression may be null
  kMacro,     // macro text(parameters): body
  kCall,      // call(parameters) expression: body
  kFilter,    // filter expression: body
  kWith,      // with targets = values: body
  kScope,     // body: generation
  kBreak,
  kContinue,
};

struct Branch {
  ExpressionPtr condition;
  Body body;
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int64_t line = 0;
  std::string text = {};
  Target target = {};
  ExpressionPtr expression = nullptr;
  ExpressionPtr condition = nullptr;
  std::vector<Parameter> parameters = {};
  bool takes_varargs = false;  // the body of a macro reads varargs, kwargs
  bool takes_kwargs = false;
  std::vector<Branch> branches = {};
  std::vector<std::pair<Target, ExpressionPtr>> assignments = {};  // of with
  Body body = {};
  Body other = {};
};

// Parses a template. Throws TemplateError, whose message begins with the line.
Body parsed_template(std::string_view source);

}  // namespace megatron::jinja
