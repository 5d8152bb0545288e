#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace megatron {

// The number that a whole word means, in decimal; nothing for any other word. Digits may be grouped
// by single underscores, as in Python: "1_000". A leading '+' is allowed.
std::optional<int64_t> integer_of(std::string_view word);
std::optional<double> number_of(std::string_view word);

}  // namespace megatron
