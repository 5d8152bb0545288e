#pragma once

#include <cstddef>
#include <cstdint>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

namespace megatron {

// A word as symbols, and its frequency.
struct CountedWord {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

// Counts of all adjacent pairs of symbols in some words, updated as pairs are merged.
class PairCounts {
 public:
  using Pair = std::pair<int32_t, int32_t>;
  struct Best {
    int64_t count = 0;
    Pair pair;
  };

  explicit PairCounts(std::vector<CountedWord> words);

  // The most frequent pair, ties to the lowest symbols; count 0 if there is none.
  Best best();
  // Replaces the pair by one symbol in all words.
  void merge(Pair pair, int32_t result);

 private:
  struct PairHash {
    size_t operator()(const Pair& pair) const {
      const uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(pair.first)) << 32) |
                           static_cast<uint32_t>(pair.second);
      return (key ^ (key >> 31)) * 0x9E3779B97F4A7C15u;
    }
  };
  struct Use {
    int64_t count = 0;
    std::vector<size_t> words;  // words where it occurs or did occur; may repeat
  };
  struct Worse {
    bool operator()(const Best& a, const Best& b) const {
      return a.count != b.count ? a.count < b.count : a.pair > b.pair;
    }
  };

  void add(Pair pair, int64_t count, size_t word);
  void remove(Pair pair, int64_t count) { uses_.at(pair).count -= count; }
  void merge_in_word(size_t place, Pair pair, int32_t result);

  std::vector<CountedWord> words_;
  std::unordered_map<Pair, Use, PairHash> uses_;
  std::priority_queue<Best, std::vector<Best>, Worse> heap_;
  std::vector<Pair> changed_;  // pairs whose count may have risen in this merge
};

}  // namespace megatron
