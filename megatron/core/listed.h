#pragma once

#include <span>
#include <string>
#include <string_view>

namespace megatron {

// The first ten items and the number of the others, for an error message: a damaged or foreign
// file may have millions.
std::string listed(std::span<const std::string> items, std::string_view separator = ", ");

}  // namespace megatron
