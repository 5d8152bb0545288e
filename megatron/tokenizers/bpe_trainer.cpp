#include "megatron/tokenizers/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <queue>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/tokenizers/byte_map.h"
#include "megatron/tokenizers/gpt2_split.h"

namespace megatron {
namespace {

constexpr int64_t kNumBytes = 256;

using Pair = std::pair<int32_t, int32_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    const uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(pair.first)) << 32) |
                         static_cast<uint32_t>(pair.second);
    return (key ^ (key >> 31)) * 0x9E3779B97F4A7C15u;
  }
};

struct Word {
  std::vector<int32_t> symbols;
  int64_t count = 0;
};

// The counts of all adjacent pairs, kept up to date while pairs are merged.
class PairCounts {
 public:
  explicit PairCounts(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t i = 0; i < words_.size(); ++i) {
      const Word& word = words_[i];
      for (size_t k = 0; k + 1 < word.symbols.size(); ++k) {
        add({word.symbols[k], word.symbols[k + 1]}, word.count, i);
      }
    }
    for (const auto& [pair, use] : uses_) heap_.push({use.count, pair});
  }

  struct Best {
    int64_t count = 0;
    Pair pair;
  };
  // The most frequent pair; count 0 if there is none.
  Best best() {
    while (!heap_.empty()) {
      const Best top = heap_.top();
      const int64_t count = uses_.at(top.pair).count;
      if (count == top.count) return top;
      heap_.pop();  // the count fell since; a rise was pushed when it happened
      if (count > 0) heap_.push({count, top.pair});
    }
    return {};
  }

  void merge(Pair pair, int32_t result) {
    std::vector<size_t> places = std::move(uses_.at(pair).words);
    std::sort(places.begin(), places.end());
    places.erase(std::unique(places.begin(), places.end()), places.end());
    changed_.clear();
    for (const size_t place : places) merge_in_word(place, pair, result);
    for (const Pair& risen : changed_) heap_.push({uses_.at(risen).count, risen});
    uses_.at(pair).count = 0;
  }

 private:
  struct Use {
    int64_t count = 0;
    std::vector<size_t> words;  // where it occurs or once did; may repeat
  };
  struct Worse {
    bool operator()(const Best& a, const Best& b) const {
      return a.count != b.count ? a.count < b.count : a.pair > b.pair;
    }
  };

  void add(Pair pair, int64_t count, size_t word) {
    Use& use = uses_[pair];
    use.count += count;
    if (use.words.empty() || use.words.back() != word) use.words.push_back(word);
  }
  void remove(Pair pair, int64_t count) { uses_.at(pair).count -= count; }

  // Recounts the whole word: words are short, and overlapping pairs (aaa) come out right.
  void merge_in_word(size_t place, Pair pair, int32_t result) {
    Word& word = words_[place];
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

  std::vector<Word> words_;
  std::unordered_map<Pair, Use, PairHash> uses_;
  std::priority_queue<Best, std::vector<Best>, Worse> heap_;
  std::vector<Pair> changed_;  // pairs whose count may have risen in this merge
};

}  // namespace

void BpeTrainer::add_text(std::string_view text) {
  gpt2_split(text, classes_, [&](std::string_view word) {
    const auto found = word_counts_.find(word);
    if (found != word_counts_.end()) {
      ++found->second;
    } else {
      word_counts_.emplace(std::string(word), 1);
    }
  });
}

BpeVocabulary BpeTrainer::train(int64_t vocab_size, int64_t min_frequency) const {
  if (vocab_size < kNumBytes + 1) {
    throw ConfigError(
        fmt::format("--vocab-size {} is too small; {} ids are taken by the bytes and "
                    "<|endoftext|>, so use more",
                    vocab_size, kNumBytes + 1));
  }
  if (min_frequency < 1) {
    throw ConfigError(
        fmt::format("--min-frequency {} must be at least 1; 2 is usual", min_frequency));
  }
  if (word_counts_.empty()) {
    throw ConfigError("the input holds no text to learn from; give files that hold some");
  }
  BpeVocabulary vocabulary;
  std::array<int32_t, kNumBytes> id_of_byte{};
  for (const uint8_t byte : byte_order()) {
    id_of_byte[byte] = static_cast<int32_t>(vocabulary.tokens.size());
    vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
  }

  std::vector<Word> words;
  words.reserve(word_counts_.size());
  for (const auto& [text, count] : word_counts_) {
    Word word;
    word.count = count;
    for (const char byte : text) word.symbols.push_back(id_of_byte[static_cast<uint8_t>(byte)]);
    words.push_back(std::move(word));
  }

  std::unordered_map<std::string, int32_t> ids;
  for (const std::string& token : vocabulary.tokens) {
    ids.emplace(token, static_cast<int32_t>(ids.size()));
  }
  PairCounts counts(std::move(words));
  while (static_cast<int64_t>(vocabulary.tokens.size()) + 1 < vocab_size) {
    const PairCounts::Best best = counts.best();
    if (best.count < min_frequency) break;
    const std::string& left = vocabulary.tokens[static_cast<size_t>(best.pair.first)];
    const std::string& right = vocabulary.tokens[static_cast<size_t>(best.pair.second)];
    vocabulary.merges.emplace_back(left, right);
    // Two pairs may spell the same token (a bc, ab c); it has one id.
    const auto [token, is_new] = ids.emplace(left + right, static_cast<int32_t>(ids.size()));
    if (is_new) vocabulary.tokens.push_back(token->first);
    counts.merge(best.pair, token->second);
  }
  return vocabulary;
}

void write_gpt2_files(const BpeVocabulary& vocabulary, const std::filesystem::path& directory) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  if (failure) {
    throw IoError(
        fmt::format("{}: cannot create the directory: {}", directory.string(), failure.message()));
  }
  const auto quoted = [](const std::string& text) { return nlohmann::json(text).dump(); };
  std::string json = "{";
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    json += quoted(printable_from_bytes(vocabulary.tokens[id])) + ": " + std::to_string(id) + ", ";
  }
  json += "\"<|endoftext|>\": " + std::to_string(vocabulary.tokens.size()) + "}";
  std::string merges = "#version: 0.2\n";
  for (const auto& [left, right] : vocabulary.merges) {
    merges += printable_from_bytes(left) + ' ' + printable_from_bytes(right) + '\n';
  }
  write_text_atomically(directory / "vocab.json", json);
  write_text_atomically(directory / "merges.txt", merges);
}

}  // namespace megatron
