#include "megatron/frontends/override_settings.h"

#include <fmt/format.h>

namespace megatron::frontends {

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
