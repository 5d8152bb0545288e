#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "megatron/core/cache_line_vector.h"

namespace megatron {

// The rule "left right -> result" over symbol numbers.
struct BpeMerge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t result = 0;
  int32_t rank = -1;  // -1: the position in the list. Rules of one rank have one result.
};

// Which pairs of the lowest rank are merged in one step.
enum class MergeOrder {
  kAllOfOnePair,  // all, from left to right: the original GPT-2
  kOneByOne,      // the leftmost: Hugging Face and TikToken
};

// Byte-pair encoding with a fixed list of merges (Sennrich et al. 2016, arXiv:1508.07909,
// sec. 3.2). Symbols are numbers >= 0 given by the caller. Immutable, so thread safe.
class BpeMerges {
 public:
  static constexpr int32_t kMaxNumber = (1 << 21) - 2;

  // A pair listed twice has its last rank. Throws FormatError if a part or a rank is above
  // kMaxNumber.
  explicit BpeMerges(std::span<const BpeMerge> merges,
                     MergeOrder order = MergeOrder::kAllOfOnePair);

  // Replaces adjacent pairs of lowest rank until no adjacent pair has a rank. n log n in the number
  // of symbols.
  void apply(std::vector<int32_t>& symbols) const;

 private:
  // kNoRank if the pair is not listed. REQUIRES: both are at most kMaxNumber + 1.
  int32_t rank_of(int32_t left, int32_t right) const {
    if (((left | right) & ~255) == 0)
      return small_ranks_[static_cast<size_t>(left) * 256 + static_cast<size_t>(right)];
    return listed_rank_of(left, right);
  }
  int32_t listed_rank_of(int32_t left, int32_t right) const;
  void apply_by_scanning(std::vector<int32_t>& word) const;
  void apply_by_heap(std::vector<int32_t>& symbols) const;

  MergeOrder order_;  // kOneByOne if both orders give the same result
  // Ranks of the pairs of symbols below 256, which are the single bytes: the first pairs of words.
  std::vector<int32_t> small_ranks_;
  // Pairs with their ranks, 8 bytes each, in the cache line that their hash chooses or in later
  // ones.
  CacheLineVector<uint64_t> slots_;
  int shift_ = 0;                 // of a 64-bit hash, to a line
  std::vector<int32_t> results_;  // by rank
};

}  // namespace megatron
