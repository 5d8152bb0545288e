#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/settings/flag_table.h"

namespace megatron::cli {

// A command that all ranks run.
struct CommonCommand {
  std::string_view usage;
  // Flags of training are accepted with a warning (without_training_words).
  bool takes_training_words = false;
  // Problems of the values of the flags, one sentence each.
  std::function<std::vector<std::string>()> problems = {};
};

// Parses the flags of such a command. All ranks throw the same CommonConfigError if their arguments
// differ or one has a problem. False: --help was printed, and the command is done.
bool parse_common_flags(FlagTable& flags, const CommonCommand& command,
                        std::span<const std::string> words, const comm::Group& world);

}  // namespace megatron::cli
