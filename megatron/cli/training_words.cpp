#include "megatron/cli/training_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/settings/training_args.h"

namespace megatron::cli {

std::vector<std::string> without_training_words(const FlagTable& own,
                                                std::span<const std::string> words) {
  std::vector<std::string> rest(words.begin(), words.end());
  std::vector<std::string> kept = own.take_own(rest);
  TrainingArgs ignored;
  FlagTable training = training_flags(ignored);
  const std::vector<std::string> taken = training.take_own(rest);
  // A flag unknown to both is reported by `own`, whose message is better.
  kept.insert(kept.end(), rest.begin(), rest.end());
  if (taken.empty()) return kept;
  const ParsedFlags parsed = training.parse(taken);
  if (!parsed.problems.empty()) throw ConfigError(parsed.problems);
  std::vector<std::string> names;
  for (const std::string& word : taken) {
    if (word.starts_with("--")) names.push_back(word.substr(0, word.find('=')));
  }
  warn(
      fmt::format("flags of training have no effect here, the checkpoint says how the model is "
                  "built: {}",
                  fmt::join(names, ", ")));
  return kept;
}

}  // namespace megatron::cli
