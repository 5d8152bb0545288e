#include "annex/corpus/shingles.h"

#include <algorithm>
#include <compare>
#include <string>

#include "megatron/tokenizers/unicode_text.h"

namespace megatron::corpus {

std::vector<Shingle> shingles_of(std::string_view text) {
  constexpr size_t kCharacters = 5;
  const std::u32string c = code_points(text);
  std::vector<Shingle> shingles;
  for (size_t i = 0; i + kCharacters < c.size(); ++i) {
    shingles.push_back({uint64_t{c[i]} << 42 | uint64_t{c[i + 1]} << 21 | uint64_t{c[i + 2]},
                        uint64_t{c[i + 3]} << 21 | uint64_t{c[i + 4]}});
  }
  std::ranges::sort(shingles);
  shingles.erase(std::unique(shingles.begin(), shingles.end()), shingles.end());
  return shingles;
}

double similarity(std::span<const Shingle> a, std::span<const Shingle> b, Jaccard kind) {
  if (a.empty() || b.empty()) return 0;
  size_t common = 0;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const auto order = a[i] <=> b[k];
    if (std::is_eq(order)) ++common;
    if (std::is_lteq(order)) ++i;
    if (std::is_gteq(order)) ++k;
  }
  size_t whole = a.size() + b.size() - common;
  if (kind == Jaccard::kMin) whole = std::min(a.size(), b.size());
  if (kind == Jaccard::kMax) whole = std::max(a.size(), b.size());
  return static_cast<double>(common) / static_cast<double>(whole);
}

}  // namespace megatron::corpus
