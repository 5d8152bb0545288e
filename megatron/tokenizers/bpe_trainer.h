#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "megatron/tokenizers/unicode.h"

namespace megatron {

// A byte-level BPE vocabulary: the single bytes, then the results of merges, then <|endoftext|>.
// Tokens are bytes, not their printable form.
struct BpeVocabulary {
  std::vector<std::string> tokens;                          // by id, without <|endoftext|>
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
};

// Learns a GPT-2-format vocabulary from text (Sennrich et al. 2016, arXiv:1508.07909, sec. 3.2).
//
// Each step merges the most frequent adjacent pair within the words of all texts; ties go to the
// lowest left, then right id. So the result depends only on the texts, not on their order or the
// machine.
class BpeTrainer {
 public:
  // Text is split into words as by GPT-2; a merge never crosses the end of a word.
  void add_text(std::string_view text);

  // Learns until `vocab_size` tokens including <|endoftext|> exist, or no pair occurs
  // `min_frequency` times. Throws ConfigError unless vocab_size >= 257 and min_frequency >= 1, and
  // if no text was added.
  BpeVocabulary train(int64_t vocab_size, int64_t min_frequency) const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>()(word); }
  };

  CharClasses classes_;
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> word_counts_;
};

// Writes vocab.json and merges.txt, each atomically, into a directory, creating it if needed.
// Throws IoError.
void write_gpt2_files(const BpeVocabulary& vocabulary, const std::filesystem::path& directory);

}  // namespace megatron
