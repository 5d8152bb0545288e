#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "megatron/jinja/value.h"

namespace megatron::jinja {

// A template cannot be read or rendered: "<name>: line 12: <problem>".
class TemplateError : public Error {
 public:
  using Error::Error;
};

// The template called raise_exception: the message is the template's own.
class RaisedByTemplate : public TemplateError {
 public:
  using TemplateError::TemplateError;
};

// Bounds of one rendering, for templates from untrusted files and for untrusted variables.
struct RenderLimits {
  int64_t max_steps = 10'000'000;         // expressions, and 16 bytes or elements of a result
  int64_t max_bytes = int64_t{64} << 20;  // of the output
  std::optional<int64_t> now =
      std::nullopt;  // for strftime_now, in Unix seconds; default: the clock
};

// A template of the part of Jinja 3.1 that chat templates use, with the options, functions and
// restrictions of transformers (utils/chat_template_utils.py): trim_blocks, lstrip_blocks,
// immutable values, break and continue, generation blocks, raise_exception, strftime_now, and a
// tojson that writes UTF-8. Without recursive loops, template inheritance, imports and includes;
// see docs/serving.md for the differences.
class Template {
 public:
  // Parses. `name` begins every message. Throws TemplateError, naming unknown constructs.
  Template(std::string name, std::string_view source);
  ~Template();
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;

  // Renders with the variables of a mapping. Thread safe. Throws TemplateError and
  // RaisedByTemplate.
  std::string render(const Value& variables, const RenderLimits& limits = {}) const;

 private:
  struct Tree;
  std::string name_;
  std::unique_ptr<const Tree> tree_;
};

// The value of a JSON text; objects keep the order of their keys. Throws FormatError for text that
// is not JSON or is nested deeper than 64 levels.
Value value_of_json(std::string_view text);

// json.dumps(value, ensure_ascii=False), as the filter tojson.
std::string json_of_value(const Value& value);

}  // namespace megatron::jinja
