#include "megatron/frontends/override_settings.h"

#include <fmt/format.h>

#include <utility>

namespace megatron::frontends {
namespace {

// The table of the flags, bound to args that are filled: declaring the rows puts the entries of
// `other` back to their defaults.
FlagTable bound_flags(TrainingArgs& args) {
  ArgMap other = args.other;
  FlagTable flags = training_flags(args);
  args.other = std::move(other);
  return flags;
}

}  // namespace

OverrideSettings::OverrideSettings(TrainingArgs& args) : args_(args), flags_(bound_flags(args)) {}

ArgValue OverrideSettings::value(const std::string& dest) const {
  const ArgMap values = flags_.values({dest});
  const auto found = values.find(dest);
  return found == values.end() ? ArgValue() : found->second;
}

void OverrideSettings::set(const std::string& dest, const ArgValue& value,
                           const std::string& source) {
  const ArgValue before = this->value(dest);
  flags_.assign(dest, value);
  const ArgValue after = this->value(dest);
  if (is_given(dest) && before != after) {
    args_.warnings.push_back(fmt::format("overriding arguments for {}:{} with {}:{}: {} says so",
                                         dest, text_of(before), dest, text_of(after), source));
  }
  args_.given.insert(dest);
}

}  // namespace megatron::frontends
