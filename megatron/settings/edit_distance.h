#pragma once

#include <cstddef>
#include <string_view>

namespace megatron {

// The number of letters to insert, delete or change to turn one word into the other.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace megatron
