#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>

#include "megatron/core/number_text.h"
#include "megatron/core/printable.h"
#include "megatron/jinja/functions.h"
#include "megatron/jinja/lexer.h"
#include "megatron/jinja/syntax.h"

namespace megatron::jinja {
namespace {

constexpr int64_t kMaxNesting = 200;

using Kind = ExpressionKind;
using Names = std::initializer_list<std::string_view>;

bool is_one_of(std::string_view text, Names names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

// Recursive descent, in the order of Jinja's own grammar (jinja2/parser.py, version 3.1).
class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokens_of(source)) {}

  Body whole() {
    Body body;
    while (current().kind != TokenKind::kEnd) add_piece(body);
    return body;
  }

 private:
  struct Level {
    Level(int64_t& the_depth, int64_t line) : depth(the_depth) {
      if (++depth > kMaxNesting) fail_at(line, "is nested too deeply");
    }
    ~Level() { --depth; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    int64_t& depth;
  };

  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int64_t line() const { return current().line; }
  Token next() {
    Token token = current();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  [[noreturn]] void fail(const std::string& problem) const { fail_at(line(), problem); }
  std::string described() const {
    switch (current().kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kText:
        return "text";
      default:
        return shortened(current().text);
    }
  }
  bool is_operator(std::string_view sign) const { return current().is(TokenKind::kOperator, sign); }
  bool is_name(std::string_view name) const { return current().is(TokenKind::kName, name); }
  bool skips(std::string_view sign) {
    const bool found = is_operator(sign);
    if (found) next();
    return found;
  }
  bool skips_name(std::string_view name) {
    const bool found = is_name(name);
    if (found) next();
    return found;
  }
  void expect(std::string_view sign) {
    if (!skips(sign)) fail(fmt::format("{} stands where {} is due", described(), sign));
  }
  void expect_name(std::string_view name) {
    if (!skips_name(name)) fail(fmt::format("{} stands where {} is due", described(), name));
  }
  std::string expected_name() {
    if (current().kind != TokenKind::kName) {
      fail(fmt::format("{} stands where a name is due", described()));
    }
    return next().text;
  }
  void expect_end(TokenKind kind, std::string_view sign) {
    if (current().kind != kind) fail(fmt::format("{} stands where {} is due", described(), sign));
    next();
  }
  void expect_tag_end() { expect_end(TokenKind::kTagEnd, "%}"); }

  // Statements.

  void add_piece(Body& body) {
    auto statement = std::make_unique<Statement>();
    statement->line = line();
    if (current().kind == TokenKind::kText) {
      statement->text = next().text;
    } else if (current().kind == TokenKind::kOutputBegin) {
      next();
      statement->kind = StatementKind::kOutput;
      statement->expression = tuple();
      expect_end(TokenKind::kOutputEnd, "}}");
    } else {
      next();
      take_statement(*statement);
      expect_tag_end();
    }
    body.push_back(std::move(statement));
  }

  // The pieces up to one of the tags that may end them, and the name of that tag.
  std::pair<Body, std::string> body_until(Names ends) {
    const Level level(depth_, line());
    const int64_t begin = line();
    skips(":");
    expect_tag_end();
    Body body;
    for (;;) {
      if (current().kind == TokenKind::kEnd) {
        fail_at(begin, fmt::format("this tag does not end; add {{% {} %}}", *(ends.end() - 1)));
      }
      const bool is_tag =
          current().kind == TokenKind::kTagBegin && following().kind == TokenKind::kName;
      if (is_tag && is_one_of(following().text, ends)) {
        next();
        return {std::move(body), next().text};
      }
      add_piece(body);
    }
  }

  void take_statement(Statement& statement) {
    if (current().kind != TokenKind::kName) {
      fail(fmt::format("{} stands where the name of a tag is due", described()));
    }
    const std::string name = next().text;
    if (name == "if") return take_if(statement);
    if (name == "for") return take_for(statement);
    if (name == "set") return take_set(statement);
    if (name == "macro") return take_macro(statement);
    if (name == "call") return take_call(statement);
    if (name == "filter") return take_filter(statement);
    if (name == "with") return take_with(statement);
    if (name == "generation") {
      statement.kind = StatementKind::kScope;
      statement.body = body_until({"endgeneration"}).first;
      return;
    }
    if (name == "break" || name == "continue") {
      if (num_loops_ == 0) fail_at(statement.line, fmt::format("{} is outside of a loop", name));
      statement.kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      return;
    }
    fail_at(statement.line,
            fmt::format("the tag {} is not supported; use if, for, set, macro, call, filter, with, "
                        "raw, generation, break or continue",
                        shortened(name)));
  }

  void take_if(Statement& statement) {
    statement.kind = StatementKind::kIf;
    for (;;) {
      ExpressionPtr condition = tuple_without_conditional();
      auto [body, end] = body_until({"elif", "else", "endif"});
      statement.branches.push_back({std::move(condition), std::move(body)});
      if (end == "endif") return;
      if (end == "elif") continue;
      statement.other = body_until({"endif"}).first;
      return;
    }
  }

  void take_for(Statement& statement) {
    statement.kind = StatementKind::kFor;
    statement.target = target(false);
    expect_name("in");
    statement.expression = tuple_without_conditional();
    if (skips_name("if")) statement.condition = expression();
    if (is_name("recursive")) fail("recursive loops are not supported; use a macro");
    ++num_loops_;
    auto [body, end] = body_until({"else", "endfor"});
    --num_loops_;
    statement.body = std::move(body);
    if (end == "else") statement.other = body_until({"endfor"}).first;
  }

  void take_set(Statement& statement) {
    statement.target = target(true);
    if (skips("=")) {
      statement.kind = StatementKind::kSet;
      statement.expression = tuple();
      return;
    }
    statement.kind = StatementKind::kSetBlock;
    if (skips("|")) statement.expression = block_filters();
    statement.body = body_until({"endset"}).first;
  }

  void take_parameters(Statement& statement) {
    expect("(");
    while (!is_operator(")")) {
      if (!statement.parameters.empty()) expect(",");
      if (is_operator(")")) break;
      Parameter parameter = {expected_name(), nullptr};
      if (skips("=")) {
        parameter.fallback = expression();
      } else if (!statement.parameters.empty() && statement.parameters.back().fallback != nullptr) {
        fail("a parameter without a default follows one with a default");
      }
      statement.parameters.push_back(std::move(parameter));
    }
    expect(")");
  }

  // The body of a macro or a call, which no loop around it may end.
  void take_own_body(Statement& statement, std::string_view end) {
    const int64_t loops = std::exchange(num_loops_, 0);
    Statement* const outer = std::exchange(macro_, &statement);
    statement.body = body_until({end}).first;
    macro_ = outer;
    num_loops_ = loops;
  }

  void take_macro(Statement& statement) {
    statement.kind = StatementKind::kMacro;
    statement.text = expected_name();
    take_parameters(statement);
    take_own_body(statement, "endmacro");
  }

  void take_call(Statement& statement) {
    statement.kind = StatementKind::kCall;
    if (is_operator("(")) take_parameters(statement);
    statement.expression = expression();
    if (statement.expression->kind != Kind::kCall) fail("call needs the call of a macro");
    take_own_body(statement, "endcall");
  }

  void take_filter(Statement& statement) {
    statement.kind = StatementKind::kFilter;
    statement.expression = block_filters();
    statement.body = body_until({"endfilter"}).first;
  }

  void take_with(Statement& statement) {
    statement.kind = StatementKind::kWith;
    while (current().kind != TokenKind::kTagEnd) {
      if (!statement.assignments.empty()) expect(",");
      Target name = target(false);
      expect("=");
      statement.assignments.emplace_back(std::move(name), expression());
    }
    statement.body = body_until({"endwith"}).first;
  }

  Target target(bool may_be_attribute) {
    std::vector<Target> parts;
    bool is_list = false;
    while (true) {
      if (!parts.empty() && (is_name("in") || is_operator("=") || is_operator(")"))) break;
      parts.push_back(one_target(may_be_attribute));
      if (!skips(",")) break;
      is_list = true;
    }
    if (!is_list) return std::move(parts.front());
    return {.parts = std::move(parts)};
  }

  Target one_target(bool may_be_attribute) {
    const Level level(depth_, line());
    if (skips("(")) {
      Target inner = target(may_be_attribute);
      expect(")");
      return inner;
    }
    Target result;
    result.name = expected_name();
    if (is_one_of(result.name, {"true", "false", "none", "True", "False", "None"})) {
      fail(fmt::format("{} cannot be assigned to", result.name));
    }
    if (may_be_attribute && skips(".")) result.attribute = expected_name();
    return result;
  }

  // Expressions.

  std::unique_ptr<Expression> made(Kind kind, int64_t at_line) const {
    auto result = std::make_unique<Expression>();
    result->kind = kind;
    result->line = at_line;
    return result;
  }
  // Chains such as a + b + c are deep trees, too.
  static ExpressionPtr finished(std::unique_ptr<Expression> one) {
    for (const ExpressionPtr& operand : one->operands) {
      if (operand != nullptr) one->depth = std::max(one->depth, 1 + operand->depth);
    }
    if (one->depth > kMaxNesting) fail_at(one->line, "the expression is nested too deeply");
    return one;
  }
  template <class... Operands>
  ExpressionPtr of(Kind kind, int64_t at_line, std::string sign, Operands... operands) const {
    auto result = made(kind, at_line);
    if (!sign.empty()) result->signs.push_back(std::move(sign));
    (result->operands.push_back(std::move(operands)), ...);
    return finished(std::move(result));
  }
  ExpressionPtr constant(Value value, int64_t at_line) const {
    auto result = made(Kind::kConstant, at_line);
    result->value = std::move(value);
    return result;
  }

  ExpressionPtr expression() { return conditional(); }
  ExpressionPtr tuple() {
    return tuple_of([this] { return conditional(); }, false);
  }
  ExpressionPtr tuple_without_conditional() {
    return tuple_of([this] { return disjunction(); }, false);
  }

  template <class Element>
  ExpressionPtr tuple_of(const Element& element, bool is_in_parentheses) {
    auto result = made(Kind::kTuple, line());
    bool is_tuple = false;
    while (true) {
      const bool is_end = current().kind == TokenKind::kOutputEnd ||
                          current().kind == TokenKind::kTagEnd || is_operator(")");
      if (is_end) break;
      result->operands.push_back(element());
      if (!skips(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && !result->operands.empty()) return std::move(result->operands.front());
    if (!is_tuple && !is_in_parentheses) {
      fail(fmt::format("{} stands where an expression is due", described()));
    }
    return finished(std::move(result));
  }

  ExpressionPtr conditional() {
    const Level level(depth_, line());
    const int64_t begin = line();
    ExpressionPtr result = disjunction();
    while (skips_name("if")) {
      ExpressionPtr condition = disjunction();
      ExpressionPtr other = skips_name("else") ? conditional() : nullptr;
      result = of(Kind::kConditional, begin, "", std::move(condition), std::move(result),
                  std::move(other));
    }
    return result;
  }

  ExpressionPtr disjunction() {
    ExpressionPtr left = conjunction();
    while (is_name("or")) {
      const int64_t at_line = next().line;
      ExpressionPtr right = conjunction();
      left = of(Kind::kOr, at_line, "", std::move(left), std::move(right));
    }
    return left;
  }

  ExpressionPtr conjunction() {
    ExpressionPtr left = negation();
    while (is_name("and")) {
      const int64_t at_line = next().line;
      ExpressionPtr right = negation();
      left = of(Kind::kAnd, at_line, "", std::move(left), std::move(right));
    }
    return left;
  }

  ExpressionPtr negation() {
    const Level level(depth_, line());
    if (!is_name("not")) return comparison();
    const int64_t at_line = next().line;
    return of(Kind::kNot, at_line, "", negation());
  }

  ExpressionPtr comparison() {
    auto result = made(Kind::kCompare, line());
    result->operands.push_back(sum());
    for (;;) {
      std::string sign;
      if (current().kind == TokenKind::kOperator &&
          is_one_of(current().text, {"==", "!=", "<", "<=", ">", ">="})) {
        sign = next().text;
      } else if (skips_name("in")) {
        sign = "in";
      } else if (is_name("not") && following().is(TokenKind::kName, "in")) {
        next();
        next();
        sign = "not in";
      } else {
        break;
      }
      result->signs.push_back(std::move(sign));
      result->operands.push_back(sum());
    }
    if (result->signs.empty()) return std::move(result->operands.front());
    return finished(std::move(result));
  }

  // A chain of operators of one level, which all group to the left.
  template <class Element>
  ExpressionPtr chain(Names signs, const Element& element) {
    ExpressionPtr left = element();
    while (current().kind == TokenKind::kOperator && is_one_of(current().text, signs)) {
      const Token sign = next();
      ExpressionPtr right = element();
      left = of(Kind::kBinary, sign.line, sign.text, std::move(left), std::move(right));
    }
    return left;
  }
  ExpressionPtr sum() {
    return chain({"+", "-"}, [this] { return concatenation(); });
  }
  ExpressionPtr product() {
    return chain({"*", "/", "//", "%"}, [this] { return power(); });
  }
  ExpressionPtr power() {
    return chain({"**"}, [this] { return unary(true); });
  }

  ExpressionPtr concatenation() {
    auto result = made(Kind::kConcatenate, line());
    result->operands.push_back(product());
    while (skips("~")) result->operands.push_back(product());
    if (result->operands.size() == 1) return std::move(result->operands.front());
    return finished(std::move(result));
  }

  ExpressionPtr unary(bool with_filters) {
    const Level level(depth_, line());
    ExpressionPtr result;
    if (is_operator("-") || is_operator("+")) {
      const Token sign = next();
      result = of(Kind::kUnary, sign.line, sign.text, unary(false));
    } else {
      result = primary();
    }
    result = postfix(std::move(result));
    return with_filters ? filters(std::move(result)) : std::move(result);
  }

  ExpressionPtr primary() {
    const Token token = current();
    switch (token.kind) {
      case TokenKind::kName:
        next();
        return name_or_constant(token);
      case TokenKind::kString: {
        std::string text;
        while (current().kind == TokenKind::kString) text += next().text;
        return constant(Value(std::move(text)), token.line);
      }
      case TokenKind::kInteger:
        next();
        return constant(Value(integer(token)), token.line);
      case TokenKind::kFloat:
        next();
        return constant(Value(megatron::number_of(token.text).value_or(0)), token.line);
      default:
        break;
    }
    if (skips("(")) {
      ExpressionPtr inner = tuple_of([this] { return conditional(); }, true);
      expect(")");
      return inner;
    }
    if (skips("[")) return list(token.line);
    if (skips("{")) return dict(token.line);
    fail(fmt::format("{} stands where an expression is due", described()));
  }

  ExpressionPtr name_or_constant(const Token& token) {
    const std::string& name = token.text;
    if (name == "true" || name == "True") return constant(Value(true), token.line);
    if (name == "false" || name == "False") return constant(Value(false), token.line);
    if (name == "none" || name == "None") return constant(Value(), token.line);
    if (macro_ != nullptr && name == "varargs") macro_->takes_varargs = true;
    if (macro_ != nullptr && name == "kwargs") macro_->takes_kwargs = true;
    auto result = made(Kind::kName, token.line);
    result->name = name;
    return result;
  }

  static int64_t integer(const Token& token) {
    std::string_view digits = token.text;
    int base = 10;
    if (digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) >= 'a') {
      const char kind = static_cast<char>(digits[1] | 0x20);
      base = kind == 'x' ? 16 : kind == 'o' ? 8 : 2;
      digits.remove_prefix(2);
    }
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      fail_at(token.line, fmt::format("{} is not an integer of 64 bits", shortened(token.text)));
    }
    return value;
  }

  ExpressionPtr list(int64_t at_line) {
    auto result = made(Kind::kList, at_line);
    while (!is_operator("]")) {
      if (!result->operands.empty()) expect(",");
      if (is_operator("]")) break;
      result->operands.push_back(expression());
    }
    expect("]");
    return finished(std::move(result));
  }

  ExpressionPtr dict(int64_t at_line) {
    auto result = made(Kind::kDict, at_line);
    while (!is_operator("}")) {
      if (!result->operands.empty()) expect(",");
      if (is_operator("}")) break;
      result->operands.push_back(expression());
      expect(":");
      result->operands.push_back(expression());
    }
    expect("}");
    return finished(std::move(result));
  }

  ExpressionPtr postfix(ExpressionPtr object) {
    for (;;) {
      if (is_operator(".")) {
        object = attribute(std::move(object));
      } else if (is_operator("[")) {
        object = subscript(std::move(object));
      } else if (is_operator("(")) {
        object = call(std::move(object));
      } else {
        return object;
      }
    }
  }

  ExpressionPtr attribute(ExpressionPtr object) {
    const int64_t at_line = next().line;
    if (current().kind == TokenKind::kInteger) {
      const Token token = next();
      return of(Kind::kItem, at_line, "", std::move(object),
                constant(Value(integer(token)), token.line));
    }
    auto result = made(Kind::kAttribute, at_line);
    result->operands.push_back(std::move(object));
    result->name = expected_name();
    return finished(std::move(result));
  }

  ExpressionPtr subscript(ExpressionPtr object) {
    const int64_t at_line = next().line;
    std::vector<ExpressionPtr> bounds;
    bool is_slice = false;
    ExpressionPtr bound = is_operator(":") ? nullptr : expression();
    while (skips(":")) {
      is_slice = true;
      bounds.push_back(std::move(bound));
      bound = is_operator(":") || is_operator("]") ? nullptr : expression();
    }
    bounds.push_back(std::move(bound));
    if (!is_slice && is_operator(",")) {
      auto key = made(Kind::kTuple, at_line);
      key->operands.push_back(std::move(bounds.front()));
      while (skips(",") && !is_operator("]")) key->operands.push_back(expression());
      bounds.front() = finished(std::move(key));
    }
    expect("]");
    if (!is_slice) return of(Kind::kItem, at_line, "", std::move(object), std::move(bounds[0]));
    if (bounds.size() > 3) fail_at(at_line, "a slice has at most two colons");
    bounds.resize(3);
    return of(Kind::kSlice, at_line, "", std::move(object), std::move(bounds[0]),
              std::move(bounds[1]), std::move(bounds[2]));
  }

  void take_arguments(Expression& result) {
    expect("(");
    bool is_first = true;
    while (!is_operator(")")) {
      if (!is_first) expect(",");
      if (is_operator(")")) break;
      is_first = false;
      if (is_operator("*") || is_operator("**")) {
        fail("arguments with * or ** are not supported; write them one by one");
      }
      if (current().kind == TokenKind::kName && following().is(TokenKind::kOperator, "=")) {
        result.names.push_back(next().text);
        next();
      } else if (!result.names.empty()) {
        fail("an argument without a name follows one with a name");
      }
      result.operands.push_back(expression());
    }
    expect(")");
  }

  ExpressionPtr call(ExpressionPtr function) {
    auto result = made(Kind::kCall, line());
    result->operands.push_back(std::move(function));
    take_arguments(*result);
    return finished(std::move(result));
  }

  ExpressionPtr filters(ExpressionPtr subject) {
    for (;;) {
      if (is_operator("|")) {
        next();
        subject = one_filter(std::move(subject));
      } else if (is_name("is")) {
        subject = test(std::move(subject));
      } else if (is_operator("(")) {
        subject = call(std::move(subject));
      } else {
        return subject;
      }
    }
  }

  // Filters of the text of a block, which the innermost one has no operand for.
  ExpressionPtr block_filters() {
    ExpressionPtr result = one_filter(nullptr);
    while (skips("|")) result = one_filter(std::move(result));
    return result;
  }

  ExpressionPtr one_filter(ExpressionPtr subject) {
    auto result = made(Kind::kFilter, line());
    result->name = expected_name();
    if (!is_filter(result->name)) {
      fail_at(result->line, fmt::format("the filter {} is not supported", shortened(result->name)));
    }
    result->operands.push_back(std::move(subject));
    if (is_operator("(")) take_arguments(*result);
    return finished(std::move(result));
  }

  ExpressionPtr test(ExpressionPtr subject) {
    const int64_t at_line = next().line;
    const bool is_negated = skips_name("not");
    auto result = made(Kind::kTest, at_line);
    result->name = expected_name();
    if (!is_test(result->name)) {
      fail_at(at_line, fmt::format("the test {} is not supported", shortened(result->name)));
    }
    result->operands.push_back(std::move(subject));
    const bool begins_argument =
        current().kind == TokenKind::kString || current().kind == TokenKind::kInteger ||
        current().kind == TokenKind::kFloat || is_operator("[") || is_operator("{") ||
        (current().kind == TokenKind::kName && !is_one_of(current().text, {"else", "or", "and"}));
    if (is_operator("(")) {
      take_arguments(*result);
    } else if (begins_argument) {
      if (is_name("is")) fail("a test cannot follow a test; use parentheses");
      ExpressionPtr argument = primary();
      result->operands.push_back(postfix(std::move(argument)));
    }
    ExpressionPtr done = finished(std::move(result));
    return is_negated ? of(Kind::kNot, at_line, "", std::move(done)) : std::move(done);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int64_t depth_ = 0;
  int64_t num_loops_ = 0;       // around the current place, within a macro
  Statement* macro_ = nullptr;  // around the current place
};

}  // namespace

Body parsed_template(std::string_view source) { return Parser(source).whole(); }

}  // namespace megatron::jinja
