#include "megatron/tokenizers/word_piece_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/tokenizers/pair_counts.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron {
namespace {

// Rarer characters are unknown; otherwise multilingual text would fill the vocabulary with
// characters.
constexpr size_t kMaxCharacters = 1000;
// Longer words are unknown to BertTokenizer.
constexpr size_t kMaxWord = 200;

const std::vector<std::string>& special_tokens() {
  static const std::vector<std::string> tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  return tokens;
}

struct Word {
  std::u32string text;
  int64_t count = 0;
};

// The characters that get a piece, in their order.
std::vector<char32_t> alphabet_of(const std::vector<Word>& words) {
  std::map<char32_t, int64_t> counts;
  for (const Word& word : words) {
    for (const char32_t c : word.text) counts[c] += word.count;
  }
  std::vector<std::pair<int64_t, char32_t>> by_count;
  for (const auto& [c, count] : counts) by_count.emplace_back(-count, c);
  std::sort(by_count.begin(), by_count.end());
  if (by_count.size() > kMaxCharacters) by_count.resize(kMaxCharacters);
  std::vector<char32_t> alphabet;
  for (const auto& [count, c] : by_count) alphabet.push_back(c);
  std::sort(alphabet.begin(), alphabet.end());
  return alphabet;
}

// The pieces and their ids, during training.
class Pieces {
 public:
  int32_t add(const std::string& piece) {
    const auto [entry, is_new] = ids_.try_emplace(piece, static_cast<int32_t>(pieces_.size()));
    if (is_new) pieces_.push_back(piece);
    return entry->second;
  }
  int32_t merged(int32_t left, int32_t right) {
    return add(pieces_[static_cast<size_t>(left)] +
               pieces_[static_cast<size_t>(right)].substr(2));  // without ##
  }
  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  const std::vector<std::string>& list() const { return pieces_; }

 private:
  std::vector<std::string> pieces_;
  std::unordered_map<std::string, int32_t> ids_;
};

std::vector<CountedWord> as_symbols(const std::vector<Word>& words,
                                    const std::vector<char32_t>& alphabet, Pieces& pieces) {
  std::vector<CountedWord> result;
  for (const Word& word : words) {
    const bool is_known = std::all_of(word.text.begin(), word.text.end(), [&](char32_t c) {
      return std::binary_search(alphabet.begin(), alphabet.end(), c);
    });
    if (!is_known) continue;
    CountedWord symbols;
    symbols.count = word.count;
    for (const char32_t c : word.text) {
      const std::string prefix = symbols.symbols.empty() ? "" : "##";
      symbols.symbols.push_back(pieces.add(prefix + to_utf8(std::u32string_view(&c, 1))));
    }
    result.push_back(std::move(symbols));
  }
  return result;
}

}  // namespace

void WordPieceTrainer::add_text(std::string_view text) {
  words_.cut(text, [&](std::string word) { ++word_counts_[std::move(word)]; });
}

std::vector<std::string> WordPieceTrainer::train(int64_t vocab_size, int64_t min_frequency) const {
  if (min_frequency < 1) {
    throw ConfigError(
        fmt::format("--min-frequency {} must be at least 1; 2 is usual", min_frequency));
  }
  std::vector<Word> words;
  for (const auto& [text, count] : word_counts_) {
    Word word{code_points(text), count};
    if (word.text.size() <= kMaxWord) words.push_back(std::move(word));
  }
  if (words.empty()) {
    throw ConfigError("the input holds no text to learn from; give files that hold some");
  }
  std::sort(words.begin(), words.end(),
            [](const Word& a, const Word& b) { return a.text < b.text; });

  Pieces pieces;
  for (const std::string& token : special_tokens()) pieces.add(token);
  const std::vector<char32_t> alphabet = alphabet_of(words);
  for (const char32_t c : alphabet) pieces.add(to_utf8(std::u32string_view(&c, 1)));
  for (const char32_t c : alphabet) pieces.add("##" + to_utf8(std::u32string_view(&c, 1)));
  if (pieces.size() > vocab_size) {
    throw ConfigError(fmt::format(
        "--vocab-size {} is too small; {} ids are taken by the special tokens and the characters "
        "of the text, so use more",
        vocab_size, pieces.size()));
  }
  PairCounts counts(as_symbols(words, alphabet, pieces));
  while (pieces.size() < vocab_size) {
    const PairCounts::Best best = counts.best();
    if (best.count < min_frequency) break;
    counts.merge(best.pair, pieces.merged(best.pair.first, best.pair.second));
  }
  return pieces.list();
}

void write_bert_vocabulary(const std::vector<std::string>& pieces,
                           const std::filesystem::path& folder) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) {
    throw IoError(
        fmt::format("{}: cannot create the folder: {}", folder.string(), failure.message()));
  }
  std::string lines;
  for (const std::string& piece : pieces) lines += piece + "\n";
  write_text_atomically(folder / "vocab.txt", lines);
}

}  // namespace megatron
