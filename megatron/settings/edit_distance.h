#pragma once

#include <cstddef>
#include <string_view>

namespace megatron {

// Levenshtein distance of two words.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace megatron
