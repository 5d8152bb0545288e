#include "megatron/core/listed.h"

#include <algorithm>

namespace megatron {

std::string listed(std::span<const std::string> items, std::string_view separator) {
  constexpr size_t kMaxItems = 10;
  std::string text;
  for (size_t i = 0; i < std::min(items.size(), kMaxItems); ++i) {
    if (i > 0) text += separator;
    text += items[i];
  }
  if (items.size() > kMaxItems) {
    text += separator;
    text += "and " + std::to_string(items.size() - kMaxItems) + " more";
  }
  return text;
}

}  // namespace megatron
