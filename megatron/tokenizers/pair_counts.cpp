#include "megatron/tokenizers/pair_counts.h"

#include <algorithm>

namespace megatron {

PairCounts::PairCounts(std::vector<CountedWord> words) : words_(std::move(words)) {
  for (size_t i = 0; i < words_.size(); ++i) {
    const CountedWord& word = words_[i];
    for (size_t k = 0; k + 1 < word.symbols.size(); ++k) {
      add({word.symbols[k], word.symbols[k + 1]}, word.count, i);
    }
  }
  for (const auto& [pair, use] : uses_) heap_.push({use.count, pair});
}

PairCounts::Best PairCounts::best() {
  while (!heap_.empty()) {
    const Best top = heap_.top();
    const int64_t count = uses_.at(top.pair).count;
    if (count == top.count) return top;
    heap_.pop();  // the count fell since; a rise was pushed when it happened
    if (count > 0) heap_.push({count, top.pair});
  }
  return {};
}

void PairCounts::merge(Pair pair, int32_t result) {
  std::vector<size_t> places = std::move(uses_.at(pair).words);
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  changed_.clear();
  for (const size_t place : places) merge_in_word(place, pair, result);
  for (const Pair& risen : changed_) heap_.push({uses_.at(risen).count, risen});
  uses_.at(pair).count = 0;
}

void PairCounts::add(Pair pair, int64_t count, size_t word) {
  Use& use = uses_[pair];
  use.count += count;
  if (use.words.empty() || use.words.back() != word) use.words.push_back(word);
}

// Recounts the whole word: words are short, and overlapping pairs (aaa) come out right.
void PairCounts::merge_in_word(size_t place, Pair pair, int32_t result) {
  CountedWord& word = words_[place];
  std::vector<int32_t>& symbols = word.symbols;
  const auto holds_pair = [&](size_t k) {
    return k + 1 < symbols.size() && symbols[k] == pair.first && symbols[k + 1] == pair.second;
  };
  size_t first = 0;
  while (first < symbols.size() && !holds_pair(first)) ++first;
  if (first == symbols.size()) return;  // an earlier merge took the occurrence away
  for (size_t k = 0; k + 1 < symbols.size(); ++k) {
    remove({symbols[k], symbols[k + 1]}, word.count);
  }
  size_t kept = first;
  for (size_t k = first; k < symbols.size(); ++kept) {
    const bool merges = holds_pair(k);
    symbols[kept] = merges ? result : symbols[k];
    k += merges ? 2 : 1;
  }
  symbols.resize(kept);
  for (size_t k = 0; k + 1 < symbols.size(); ++k) {
    const Pair now{symbols[k], symbols[k + 1]};
    add(now, word.count, place);
    if (now.first == result || now.second == result) changed_.push_back(now);
  }
}

}  // namespace megatron
