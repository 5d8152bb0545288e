#include "megatron/core/error.h"

namespace megatron {
namespace {

std::string lines_of(const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& problem : problems) {
    if (!text.empty()) text += '\n';
    text += problem;
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
