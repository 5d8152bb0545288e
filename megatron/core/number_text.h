#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megatron {

// Parses a whole word as a decimal number; nothing if it is not one. Single underscores may group
// digits, as in Python: "1_000". A leading '+' is allowed.
std::optional<int64_t> integer_of(std::string_view word);
std::optional<double> number_of(std::string_view word);

// A number as printed by Python's repr: the shortest digits that read back as the same double, with
// an exponent below 1e-4 and from 1e16 on (0.1, 1.0, 1e-07, 1e+16). NaN and Infinity are as in
// JSON.
std::string python_repr(double value);

}  // namespace megatron
