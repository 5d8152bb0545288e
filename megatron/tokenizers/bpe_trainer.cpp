#include "megatron/tokenizers/bpe_trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "megatron/tokenizers/byte_map.h"
#include "megatron/tokenizers/gpt2_split.h"
#include "megatron/tokenizers/pair_counts.h"

namespace megatron {
namespace {

constexpr int64_t kNumBytes = 256;

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

  std::vector<CountedWord> words;
  words.reserve(word_counts_.size());
  for (const auto& [text, count] : word_counts_) {
    CountedWord word;
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
  FileWriter vocab_file(directory / "vocab.json");
  FileWriter merges_file(directory / "merges.txt");
  vocab_file.write(json);
  merges_file.write(merges);
  commit_together(vocab_file, merges_file);
}

}  // namespace megatron
