#include "megatron/jinja/template.h"

#include <fmt/format.h>

#include <utility>

#include "megatron/jinja/interpreter.h"
#include "megatron/jinja/syntax.h"

namespace megatron::jinja {

struct Template::Tree {
  Body body;
};

Template::Template(std::string name, std::string_view source) : name_(std::move(name)) {
  try {
    tree_ = std::make_unique<const Tree>(Tree{parsed_template(source)});
  } catch (const TemplateError& error) {
    throw TemplateError(fmt::format("{}: {}", name_, error.what()));
  }
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

std::string Template::render(const Value& variables, const RenderLimits& limits) const {
  try {
    return Interpreter(variables, limits).render(tree_->body);
  } catch (const RaisedByTemplate&) {
    throw;
  } catch (const TemplateError& error) {
    throw TemplateError(fmt::format("{}: {}", name_, error.what()));
  }
}

}  // namespace megatron::jinja
