#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/jinja/template.h"

namespace megatron::jinja {

enum class TokenKind {
  kText,         // between tags
  kOutputBegin,  // {{
  kOutputEnd,    // }}
  kTagBegin,     // {%
  kTagEnd,       // %}
  kName,
  kString,  // without quotes and escapes
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text = {};
  int64_t line = 0;

  bool is(TokenKind a_kind, std::string_view a_text) const {
    return kind == a_kind && text == a_text;
  }
};

// The tokens of a template, with a last one of kind kEnd. As transformers sets Jinja's options, a
// statement removes the white space before it on its line and the newline after it (lstrip_blocks,
// trim_blocks). Throws TemplateError, whose message begins with the line.
std::vector<Token> tokens_of(std::string_view source);

[[noreturn]] void fail_at(int64_t line, const std::string& problem);

}  // namespace megatron::jinja
