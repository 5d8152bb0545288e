#include "megatron/tokenizers/bpe_merges.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <queue>
#include <tuple>

#include "megatron/core/error.h"

namespace megatron {
namespace {

// A slot packs left, right and rank in this order, with these numbers of bits.
constexpr int kBits = 21;
constexpr int32_t kNoRank = (1 << kBits) - 1;
constexpr uint64_t kNoPair = ~uint64_t{0};
static_assert(BpeMerges::kMaxNumber == kNoRank - 1 && 3 * kBits < 64);
// The slots of a cache line.
constexpr size_t kLineSlots = 8;
using Line = uint64_t __attribute__((vector_size(kLineSlots * sizeof(uint64_t))));
// Up to here a scan over all pairs beats a heap.
constexpr size_t kMaxScanned = 96;

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right);
}

// REQUIRES: both are at most kMaxNumber.
uint64_t small_pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << kBits | static_cast<uint64_t>(right);
}

// The upper bits are used.
uint64_t hash_of(uint64_t pair) { return pair * 0x9E3779B97F4A7C15u; }

// Bitwise AND of all slots of a line.
uint64_t all_bits(const Line& line) {
  using Half = uint64_t __attribute__((vector_size(sizeof(Line) / 2)));
  std::array<Half, 2> halves;
  std::memcpy(halves.data(), &line, sizeof(line));
  const Half both = halves[0] & halves[1];
  return (both[0] & both[1]) & (both[2] & both[3]);
}

void expect_small(int32_t number, size_t position) {
  if (number <= BpeMerges::kMaxNumber) return;
  throw FormatError(fmt::format(
      "merge {} has a piece or a rank of number {}, the largest possible one is {}; use a smaller "
      "vocabulary",
      position, number, BpeMerges::kMaxNumber));
}

// True if a merge never creates a pair of its own or a lower rank, that is, if every piece is
// created before it is used. Then merging all pairs of a rank in one round equals merging one at a
// time.
bool makes_before_use(std::span<const BpeMerge> merges, std::span<const int32_t> ranks) {
  int32_t largest = 0;
  for (const BpeMerge& merge : merges) {
    largest = std::max({largest, merge.left, merge.right, merge.result});
  }
  std::vector<int32_t> first_use(static_cast<size_t>(largest) + 1,
                                 std::numeric_limits<int32_t>::max());
  const auto use_of = [&](int32_t symbol) -> int32_t& {
    return first_use[static_cast<size_t>(symbol)];
  };
  for (size_t i = 0; i < merges.size(); ++i) {
    for (const int32_t part : {merges[i].left, merges[i].right}) {
      use_of(part) = std::min(use_of(part), ranks[i]);
    }
  }
  for (size_t i = 0; i < merges.size(); ++i) {
    if (use_of(merges[i].result) <= ranks[i]) return false;
  }
  return true;
}

}  // namespace

BpeMerges::BpeMerges(std::span<const BpeMerge> merges, MergeOrder order) : order_(order) {
  const size_t num_lines = std::bit_ceil(merges.size() / 4 + 2);  // four slots a line, on average
  slots_.resize(num_lines * kLineSlots, kNoPair);
  shift_ = 64 - std::countr_zero(num_lines);
  results_.reserve(merges.size());
  std::vector<int32_t> ranks;
  ranks.reserve(merges.size());
  for (size_t position = 0; position < merges.size(); ++position) {
    const BpeMerge& merge = merges[position];
    ranks.push_back(merge.rank < 0 ? static_cast<int32_t>(position) : merge.rank);
    const int32_t rank = ranks.back();
    for (const int32_t number : {merge.left, merge.right, rank}) expect_small(number, position);
    const uint64_t pair = small_pair_key(merge.left, merge.right);
    size_t i = (hash_of(pair) >> shift_) * kLineSlots;
    while (slots_[i] != kNoPair && slots_[i] >> kBits != pair) i = (i + 1) % slots_.size();
    slots_[i] = pair << kBits | static_cast<uint64_t>(rank);
    if (static_cast<size_t>(rank) >= results_.size()) {
      results_.resize(static_cast<size_t>(rank) + 1);
    }
    results_[static_cast<size_t>(rank)] = merge.result;
  }
  if (makes_before_use(merges, ranks)) order_ = MergeOrder::kOneByOne;
  small_ranks_.reserve(256 * 256);
  for (int32_t left = 0; left < 256; ++left) {
    for (int32_t right = 0; right < 256; ++right) {
      small_ranks_.push_back(listed_rank_of(left, right));
    }
  }
}

int32_t BpeMerges::listed_rank_of(int32_t left, int32_t right) const {
  const uint64_t pair = small_pair_key(left, right);
  size_t first = (hash_of(pair) >> shift_) * kLineSlots;
  while (true) {
    // Compares the whole line: a branch per slot would be unpredictable.
    Line line;
    std::memcpy(&line, slots_.data() + first, sizeof(line));
    const uint64_t found = all_bits(line | ~Line(line >> kBits == pair));
    const bool is_full = line[kLineSlots - 1] != kNoPair;
    if (!is_full || found != kNoPair) return static_cast<int32_t>(found & kNoRank);
    first = (first + kLineSlots) % slots_.size();
  }
}

void BpeMerges::apply(std::vector<int32_t>& symbols) const {
  if (symbols.size() < 2) return;
  const bool is_small = std::all_of(symbols.begin(), symbols.end(),
                                    [](int32_t symbol) { return symbol <= kMaxNumber; });
  if (is_small && symbols.size() <= kMaxScanned) {
    apply_by_scanning(symbols);
  } else {
    apply_by_heap(symbols);
  }
}

void BpeMerges::apply_by_scanning(std::vector<int32_t>& word) const {
  // Positions are fixed; a linked list skips those whose symbol was merged away. The pair of a
  // position is its symbol and the next one. A key packs rank and position of a pair, so that the
  // minimum is the leftmost pair of the lowest rank. Sentinels without pairs before the first and
  // after the last symbol avoid special cases.
  constexpr int kPlaceBits = 8;
  constexpr int32_t kNoSymbol = kMaxNumber + 1;
  constexpr size_t kLanes = 16;  // of a vector
  constexpr size_t kPlaces = kMaxScanned + kLanes;
  static_assert(kPlaces <= size_t{1} << kPlaceBits && kBits + kPlaceBits < 32);
  static_assert(kPlaces % kLanes == 0);
  const size_t end = word.size() + 1;
  std::array<int32_t, kPlaces> symbols;
  std::array<uint32_t, kPlaces> pairs;
  std::array<uint8_t, kPlaces> next;
  std::array<uint8_t, kPlaces> previous;
  const auto set_rank = [&](size_t place, int32_t rank) {
    pairs[place] = static_cast<uint32_t>(rank) << kPlaceBits | static_cast<uint32_t>(place);
  };
  std::fill_n(pairs.begin() + end / kLanes * kLanes, kLanes, ~uint32_t{0});
  symbols[0] = kNoSymbol;
  symbols[end] = kNoSymbol;
  std::copy(word.begin(), word.end(), symbols.begin() + 1);
  for (size_t i = 0; i < end; ++i) {
    next[i] = static_cast<uint8_t>(i + 1);
    previous[i + 1] = static_cast<uint8_t>(i);
    set_rank(i, i > 0 && i + 1 < end ? rank_of(symbols[i], symbols[i + 1]) : kNoRank);
  }
  const auto look_up = [&](size_t place) {
    const int32_t rank = listed_rank_of(symbols[place], symbols[next[place]]);
    __builtin_prefetch(results_.data() + rank);
    set_rank(place, rank);
  };
  while (true) {
    uint32_t least = ~uint32_t{0};
    for (size_t group = 0; group < end; group += kLanes) {
      for (size_t i = group; i < group + kLanes; ++i) least = std::min(least, pairs[i]);
    }
    const uint32_t rank = least >> kPlaceBits;
    if (rank >= static_cast<uint32_t>(kNoRank)) break;
    const int32_t result = results_[rank];
    for (size_t i = least & ((1u << kPlaceBits) - 1); i < end; i = next[i]) {
      if (pairs[i] >> kPlaceBits != rank) continue;
      const size_t gone = next[i];
      symbols[i] = result;
      pairs[gone] = ~uint32_t{0};
      next[i] = next[gone];
      previous[next[i]] = static_cast<uint8_t>(i);
      look_up(i);
      look_up(previous[i]);
      if (order_ == MergeOrder::kOneByOne) break;
    }
  }
  size_t kept = 0;
  for (size_t i = 1; i < end; i = next[i]) word[kept++] = symbols[i];
  word.resize(kept);
}

void BpeMerges::apply_by_heap(std::vector<int32_t>& symbols) const {
  struct Candidate {
    int32_t rank;
    int64_t position;
    uint64_t pair;  // what stood there; the candidate is stale if it no longer does
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return std::tie(a.rank, a.position) > std::tie(b.rank, b.position);
  };
  std::priority_queue<Candidate, std::vector<Candidate>, decltype(later)> heap(later);

  // A doubly linked list over the positions; -1 is no position, and the symbol of a removed one.
  const auto size = static_cast<int64_t>(symbols.size());
  std::vector<int64_t> next(symbols.size());
  std::vector<int64_t> previous(symbols.size());
  for (int64_t i = 0; i < size; ++i) {
    next[static_cast<size_t>(i)] = i + 1 < size ? i + 1 : -1;
    previous[static_cast<size_t>(i)] = i - 1;
  }
  const auto symbol = [&](int64_t i) -> int32_t& { return symbols[static_cast<size_t>(i)]; };
  const auto after = [&](int64_t i) -> int64_t& { return next[static_cast<size_t>(i)]; };
  const auto before = [&](int64_t i) -> int64_t& { return previous[static_cast<size_t>(i)]; };
  const auto consider = [&](int64_t i) {
    if (i < 0 || after(i) < 0) return;
    if (std::max(symbol(i), symbol(after(i))) > kMaxNumber) return;
    const int32_t rank = rank_of(symbol(i), symbol(after(i)));
    if (rank != kNoRank) heap.push({rank, i, pair_key(symbol(i), symbol(after(i)))});
  };
  for (int64_t i = 0; i < size; ++i) consider(i);

  std::vector<Candidate> round;
  while (!heap.empty()) {
    // A merge may create pairs of a lower rank, which wait for the end of the round.
    round.clear();
    const int32_t rank = heap.top().rank;
    do {
      round.push_back(heap.top());
      heap.pop();
    } while (order_ == MergeOrder::kAllOfOnePair && !heap.empty() && heap.top().rank == rank);
    for (const Candidate& candidate : round) {
      const int64_t i = candidate.position;
      if (symbol(i) < 0 || after(i) < 0) continue;
      const int64_t gone = after(i);
      if (pair_key(symbol(i), symbol(gone)) != candidate.pair) continue;
      symbol(i) = results_[static_cast<size_t>(rank)];
      symbol(gone) = -1;
      after(i) = after(gone);
      if (after(i) >= 0) before(after(i)) = i;
      consider(before(i));
      consider(i);
    }
  }
  std::erase(symbols, -1);
}

}  // namespace megatron
