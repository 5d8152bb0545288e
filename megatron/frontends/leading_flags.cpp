#include "megatron/frontends/leading_flags.h"

#include <algorithm>

namespace megatron::frontends {
namespace {

std::string with_hyphens(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool takes_value(const FlagTable& flags, const std::string& typed) {
  const std::string name = with_hyphens(typed);
  for (const Flag& flag : flags.rows()) {
    for (const std::string& spelling : flag.names) {
      if (with_hyphens(spelling) == name) return flag.takes_value();
    }
  }
  return false;
}

}  // namespace

size_t end_of_leading_flags(const FlagTable& flags, std::span<const std::string> words) {
  size_t at = 0;
  while (at < words.size() && words[at].starts_with('-')) {
    if (words[at] == "--") return at + 1;
    const bool has_own_value = words[at].find('=') != std::string::npos;
    at += !has_own_value && takes_value(flags, words[at]) ? 2 : 1;
  }
  return std::min(at, words.size());
}

}  // namespace megatron::frontends
