#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megatron/tokenizers/bert_words.h"

namespace megatron {

// Learns a vocabulary for BertTokenizer from text: [PAD], [UNK], [CLS], [SEP], [MASK], the most
// frequent characters, each at the beginning of a word and, as ##c, after it, then pieces made by
// merging the most frequent adjacent pair within the words of all texts; ties go to the lowest
// left, then right id. So the result depends only on the texts, not on their order or the machine.
class WordPieceTrainer {
 public:
  explicit WordPieceTrainer(bool lower_case) : words_(lower_case) {}

  void add_text(std::string_view text);

  // Learns until `vocab_size` pieces exist, or no pair occurs `min_frequency` times. Throws
  // ConfigError if vocab_size has no room for the special tokens and characters, if min_frequency
  // is less than 1, and if no text was added.
  std::vector<std::string> train(int64_t vocab_size, int64_t min_frequency) const;

 private:
  BertWords words_;
  std::unordered_map<std::string, int64_t> word_counts_;
};

// Writes vocab.txt atomically into a folder, creating it if needed. Throws IoError.
void write_bert_vocabulary(const std::vector<std::string>& pieces,
                           const std::filesystem::path& folder);

}  // namespace megatron
