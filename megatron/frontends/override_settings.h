#pragma once

#include <string>

#include "megatron/settings/training_args.h"

namespace megatron::frontends {

// Sets fields of training flags on behalf of another source than the command line.
class OverrideSettings {
 public:
  explicit OverrideSettings(TrainingArgs& args);

  bool is_given(const std::string& dest) const { return args_.given.contains(dest); }
  // The value of a setting now.
  ArgValue value(const std::string& dest) const;
  // Gives the setting a value. Appends a warning to the args if the command line named another one;
  // `source` says who overrides it.
  void set(const std::string& dest, const ArgValue& value, const std::string& source);

 private:
  TrainingArgs& args_;
  FlagTable flags_;
};

}  // namespace megatron::frontends
