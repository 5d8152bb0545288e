#include "megatron/core/parts.h"

#include <fmt/format.h>

#include "megatron/core/error.h"

namespace megatron {

std::string missing_part(std::string_view what, std::string_view option) {
  return fmt::format("{} is not in this build; configure with -D{}=ON", what, option);
}

void refuse_missing(std::string_view what, std::string_view option) {
  throw Unsupported(missing_part(what, option));
}

}  // namespace megatron
