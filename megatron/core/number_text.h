#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace megatron {

// Parses a whole word as a decimal number; nothing if it is not one. Single underscores may group
// digits, as in Python: "1_000". A leading '+' is allowed.
std::optional<int64_t> integer_of(std::string_view word);
std::optional<double> number_of(std::string_view word);

}  // namespace megatron
