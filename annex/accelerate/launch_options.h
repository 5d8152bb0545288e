#pragma once

#include <map>
#include <string>

#include "megatron/settings/flag_table.h"

namespace megatron::frontends {

// The options of `accelerate launch` by their names with underscores, as they were typed.
struct LaunchOptions {
  std::map<std::string, std::string> texts;  // empty: not typed
  std::map<std::string, bool> switches;

  bool is_on(const char* name) const { return switches.at(name); }
  bool is_typed(const std::string& name) const;
};

// All options, bound to `options`, which must outlive the table and stay where it is.
FlagTable launch_option_table(LaunchOptions& options);

}  // namespace megatron::frontends
