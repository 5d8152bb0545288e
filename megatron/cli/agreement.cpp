#include "megatron/cli/agreement.h"

#include "megatron/cli/command.h"
#include "megatron/cli/training_words.h"
#include "megatron/run/agreement.h"
#include "megatron/run/collectively.h"

namespace megatron::cli {

bool parse_common_flags(FlagTable& flags, const CommonCommand& command,
                        std::span<const std::string> words, const comm::Group& world) {
  expect_same_words(words, world);
  return collectively([&] {
    const bool has_work =
        command.takes_training_words
            ? parse_flags(flags, command.usage, without_training_words(flags, words))
            : parse_flags(flags, command.usage, words);
    if (!has_work) return false;
    const std::vector<std::string> wrong =
        command.problems ? command.problems() : std::vector<std::string>();
    if (!wrong.empty()) throw ConfigError(wrong);
    return true;
  });
}

}  // namespace megatron::cli
