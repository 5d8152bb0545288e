#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace megatron::corpus {

// Five code points of a text, 21 bits each.
struct Shingle {
  uint64_t first_three = 0;
  uint64_t last_two = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 of the comparison for one
  auto operator<=>(const Shingle&) const = default;
};

// The set of the text's 5-grams of characters, sorted.
// Compat: tools/openwebtext/find_duplicates.py leaves out the last 5-gram of each text, so a text
// of five characters has none.
std::vector<Shingle> shingles_of(std::string_view text);

// The denominator of the similarity of two sets.
enum class Jaccard { kUnion, kMin, kMax };

// Size of the intersection over that of the union, of the smaller or of the larger set. 0 if one of
// the sets is empty.
double similarity(std::span<const Shingle> a, std::span<const Shingle> b, Jaccard kind);

}  // namespace megatron::corpus
