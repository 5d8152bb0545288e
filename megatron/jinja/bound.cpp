#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "megatron/jinja/functions.h"

namespace megatron::jinja {

Bound::Bound(const Arguments& arguments, std::string_view function,
             std::initializer_list<std::string_view> parameters, size_t required)
    : function_(function), values_(parameters.size()) {
  if (arguments.positional.size() > parameters.size()) {
    throw Fault(fmt::format("{} takes at most {} arguments, {} are given", function,
                            parameters.size(), arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto place = std::find(parameters.begin(), parameters.end(), name);
    if (place == parameters.end()) {
      throw Fault(fmt::format("{} takes no argument named {}", function, name));
    }
    const Value*& target = values_[static_cast<size_t>(place - parameters.begin())];
    if (target != nullptr) throw Fault(fmt::format("{} gets {} twice", function, name));
    target = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] != nullptr) continue;
    throw Fault(fmt::format("{} needs the argument {}", function, *(parameters.begin() + i)));
  }
}

int64_t Bound::integer(size_t index, int64_t fallback) const {
  if (!has(index)) return fallback;
  require_defined(at(index));
  if (const auto value = as_integer(at(index))) return *value;
  throw Fault(fmt::format("{} needs an integer in place of '{}'", function_, type_name(at(index))));
}

const std::string& Bound::text(size_t index) const {
  require_defined(at(index));
  if (const std::string* text = at(index).text()) return *text;
  throw Fault(fmt::format("{} needs a string in place of '{}'", function_, type_name(at(index))));
}

std::optional<std::string_view> Bound::optional_text(size_t index) const {
  if (!has(index) || at(index).is_none()) return std::nullopt;
  return std::string_view(text(index));
}

}  // namespace megatron::jinja
