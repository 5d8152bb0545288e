#include "megatron/tokenizers/bpe_merges.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <queue>
#include <tuple>

namespace megatron {
namespace {

constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
constexpr uint64_t kNoPair = ~uint64_t{0};  // symbols are not negative
// Up to here a scan over all pairs beats a heap.
constexpr size_t kMaxScanned = 96;

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

// Its upper bits count.
uint64_t hash_of(uint64_t pair) { return pair * 0x9E3779B97F4A7C15u; }

}  // namespace

BpeMerges::BpeMerges(std::span<const BpeMerge> merges, MergeOrder order) : order_(order) {
  const size_t num_slots = std::bit_ceil(std::max<size_t>(merges.size() * 2, 16));
  slots_.resize(num_slots, {kNoPair, kNoRank});
  shift_ = 64 - std::countr_zero(num_slots);
  hash_bits_.resize(num_slots * 8 / 64);
  bit_shift_ = shift_ - 3;
  results_.reserve(merges.size());
  int32_t position = 0;
  for (const BpeMerge& merge : merges) {
    const uint64_t pair = pair_key(merge.left, merge.right);
    const uint64_t hash = hash_of(pair);
    size_t i = hash >> shift_;
    while (slots_[i].pair != kNoPair && slots_[i].pair != pair) i = (i + 1) & (num_slots - 1);
    const int32_t rank = merge.rank < 0 ? position : merge.rank;
    slots_[i] = {pair, rank};
    hash_bits_[(hash >> bit_shift_) / 64] |= uint64_t{1} << ((hash >> bit_shift_) % 64);
    if (static_cast<size_t>(rank) >= results_.size())
      results_.resize(static_cast<size_t>(rank) + 1);
    results_[static_cast<size_t>(rank)] = merge.result;
    ++position;
  }
  small_ranks_.reserve(256 * 256);
  for (int32_t left = 0; left < 256; ++left) {
    for (int32_t right = 0; right < 256; ++right) {
      small_ranks_.push_back(listed_rank_of(left, right));
    }
  }
}

int32_t BpeMerges::listed_rank_of(int32_t left, int32_t right) const {
  const uint64_t pair = pair_key(left, right);
  const uint64_t hash = hash_of(pair);
  const uint64_t bit = hash >> bit_shift_;
  if ((hash_bits_[bit / 64] >> (bit % 64) & 1) == 0) return kNoRank;
  size_t i = hash >> shift_;
  while (slots_[i].pair != pair) {
    if (slots_[i].pair == kNoPair) return kNoRank;
    i = (i + 1) & (slots_.size() - 1);
  }
  return slots_[i].rank;
}

void BpeMerges::apply(std::vector<int32_t>& symbols) const {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kMaxScanned) {
    apply_by_scanning(symbols);
  } else {
    apply_by_heap(symbols);
  }
}

void BpeMerges::apply_by_scanning(std::vector<int32_t>& symbols) const {
  // Places stay where they are; a list leads over those whose symbol was merged away. The pair of
  // a place is its symbol and the next one. One number holds rank and place of a pair, so that the
  // least number is the leftmost pair of the lowest rank.
  constexpr int kPlaceBits = 8;
  constexpr uint64_t kNoPairHere = ~uint64_t{0};
  static_assert(kMaxScanned < size_t{1} << kPlaceBits);
  const size_t size = symbols.size();
  std::array<uint64_t, kMaxScanned> pairs;
  std::array<uint8_t, kMaxScanned + 1> next;
  std::array<uint8_t, kMaxScanned + 1> previous;
  const auto look_up = [&](size_t place) {
    const size_t right = next[place];
    const int32_t rank = right < size ? rank_of(symbols[place], symbols[right]) : kNoRank;
    pairs[place] =
        rank == kNoRank ? kNoPairHere : (static_cast<uint64_t>(rank) << kPlaceBits) | place;
  };
  for (size_t i = 0; i < size; ++i) {
    next[i] = static_cast<uint8_t>(i + 1);
    previous[i + 1] = static_cast<uint8_t>(i);
    look_up(i);
  }
  while (true) {
    uint64_t least = pairs[0];
    for (size_t i = 1; i < size; ++i) least = std::min(least, pairs[i]);
    if (least == kNoPairHere) break;
    const uint64_t rank = least >> kPlaceBits;
    const int32_t result = results_[rank];
    for (size_t i = least & ((1u << kPlaceBits) - 1); i < size; i = next[i]) {
      if (pairs[i] >> kPlaceBits != rank) continue;
      const size_t gone = next[i];
      symbols[i] = result;
      pairs[gone] = kNoPairHere;
      next[i] = next[gone];
      previous[next[i]] = static_cast<uint8_t>(i);
      look_up(i);
      if (i > 0) look_up(previous[i]);
      if (order_ == MergeOrder::kOneByOne) break;
    }
  }
  size_t kept = 0;
  for (size_t i = 0; i < size; i = next[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
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

  // A doubly linked list over the positions; -1 is no position, and the symbol of a gone one.
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
    const int32_t rank = rank_of(symbol(i), symbol(after(i)));
    if (rank != kNoRank) heap.push({rank, i, pair_key(symbol(i), symbol(after(i)))});
  };
  for (int64_t i = 0; i < size; ++i) consider(i);

  std::vector<Candidate> round;
  while (!heap.empty()) {
    // A merge may bring up pairs of a lower rank, which wait for the end of the round.
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
