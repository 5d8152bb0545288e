#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace megatron {

enum class Split { kTrain, kValid, kTest };
inline constexpr std::array<Split, 3> kSplits = {Split::kTrain, Split::kValid, Split::kTest};

// "train", "valid", "test".
std::string_view split_name(Split split);

// A part [lower, upper) of a dataset, as fractions of its elements in file order.
struct SplitBounds {
  double lower = 0;
  double upper = 1;
};
// The bounds of train, valid and test; empty for a split without data.
using SplitMatrix = std::array<std::optional<SplitBounds>, 3>;

// Elements [begin, end) of a dataset.
struct IndexRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// Parses --split: up to three numbers ("969, 30, 1", "80/15/5", "1"); missing ones are 0. Throws
// ConfigError if there are more or all are 0.
SplitMatrix parse_split(std::string_view text);

// For each split, the intersection of its parts in both matrices.
SplitMatrix intersection(const SplitMatrix& a, const SplitMatrix& b);

// The elements of a split of n elements; rounds bounds, halves to even.
IndexRange split_range(const SplitBounds& bounds, int64_t n);

// Samples each split must provide.
struct SampleCounts {
  int64_t train = 0;
  int64_t valid = 0;
  int64_t test = 0;

  int64_t of(Split split) const;
};

}  // namespace megatron
