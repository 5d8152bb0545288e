#include "megatron/data/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "megatron/core/error.h"

namespace megatron {

std::string_view split_name(Split split) {
  switch (split) {
    case Split::kTrain:
      return "train";
    case Split::kValid:
      return "valid";
    case Split::kTest:
      return "test";
  }
  throw InternalError("Split out of range");
}

SplitMatrix parse_split(std::string_view text) {
  constexpr std::string_view kNumber = ".0123456789";
  // Compat: core_r0.5.0 takes the numbers and ignores everything between them. This program rejects
  // signs.
  std::string lower_case(text);
  std::ranges::transform(lower_case, lower_case.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower_case.find("nan") != std::string::npos || lower_case.find("inf") != std::string::npos) {
    throw ConfigError(
        fmt::format("--split \"{}\" must be finite numbers; use for example 969,30,1", text));
  }
  const size_t sign = text.find('-');
  const bool is_negative =
      sign != std::string_view::npos && text.find_first_of(kNumber, sign) == sign + 1;
  if (is_negative || text.find_first_of(kNumber) == std::string_view::npos) {
    throw ConfigError(fmt::format(
        "--split \"{}\" must be up to three numbers of at least 0; use for example 969,30,1",
        text));
  }
  std::vector<double> parts;
  for (size_t at = text.find_first_of(kNumber); at != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_not_of(kNumber, at), text.size());
    double value = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, value);
    if (error != std::errc() || stop != text.data() + end) {
      throw ConfigError(fmt::format("--split \"{}\": {} is not a number; use for example 969,30,1",
                                    text, text.substr(at, end - at)));
    }
    parts.push_back(value);
    at = text.find_first_of(kNumber, end);
  }
  if (parts.size() > 3) {
    throw ConfigError(
        fmt::format("--split \"{}\" has {} numbers; give at most three, for train, "
                    "validation and test",
                    text, parts.size()));
  }
  parts.resize(3, 0.0);
  const double sum = (parts[0] + parts[1]) + parts[2];
  if (!(sum > 0)) {
    throw ConfigError(
        fmt::format("--split \"{}\" gives nothing to any split; use for example "
                    "969,30,1",
                    text));
  }
  SplitMatrix matrix;
  double lower = 0;
  for (size_t k = 0; k < parts.size(); ++k) {
    const double upper = lower + parts[k] / sum;
    if (upper > lower) matrix[k] = SplitBounds{lower, upper};
    lower = upper;
  }
  return matrix;
}

SplitMatrix intersection(const SplitMatrix& a, const SplitMatrix& b) {
  SplitMatrix both;
  for (size_t k = 0; k < both.size(); ++k) {
    if (!a[k] || !b[k]) continue;
    const SplitBounds common{std::max(a[k]->lower, b[k]->lower),
                             std::min(a[k]->upper, b[k]->upper)};
    if (common.lower < common.upper) both[k] = common;
  }
  return both;
}

IndexRange split_range(const SplitBounds& bounds, int64_t n) {
  const auto rounded = [n](double fraction) {
    return static_cast<int64_t>(std::nearbyint(fraction * static_cast<double>(n)));
  };
  return {rounded(bounds.lower), rounded(bounds.upper)};
}

int64_t SampleCounts::of(Split split) const {
  switch (split) {
    case Split::kTrain:
      return train;
    case Split::kValid:
      return valid;
    case Split::kTest:
      return test;
  }
  throw InternalError("Split out of range");
}

}  // namespace megatron
