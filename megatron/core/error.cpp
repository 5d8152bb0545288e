#include "megatron/core/error.h"

namespace megatron {
namespace {

// One line per problem: only the first kMaxLines, each cut to kMaxCharacters.
std::string lines_of(const std::vector<std::string>& problems) {
  constexpr size_t kMaxLines = 50;
  constexpr size_t kMaxCharacters = 4000;
  std::string text;
  for (size_t i = 0; i < problems.size() && i < kMaxLines; ++i) {
    if (!text.empty()) text += '\n';
    text += problems[i].substr(0, kMaxCharacters);
    if (problems[i].size() > kMaxCharacters) text += " ...";
  }
  if (problems.size() > kMaxLines) {
    text += "\nand " + std::to_string(problems.size() - kMaxLines) + " more of this kind";
  }
  return text;
}

}  // namespace

ConfigError::ConfigError(const std::vector<std::string>& problems) : Error(lines_of(problems)) {}

void invariant(bool holds, const char* claim, const char* file, int line) {
  if (holds) return;
  throw InternalError(std::string("internal error at ") + file + ":" + std::to_string(line) +
                      ": expected that " + claim + "; please report this with the command line");
}

}  // namespace megatron
