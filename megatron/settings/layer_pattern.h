#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace megatron {

// The number of each layer that an expression of Python's lists says, "([0]*3+[1])*2", or one
// number alone, "4". Lists add up, and an integer repeats them. Nothing if the text is no such
// expression, or has more than 100,000 numbers.
std::optional<std::vector<int>> layer_pattern(std::string_view text);

}  // namespace megatron
