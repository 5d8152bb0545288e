#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/byte_trie.h"

namespace megatron {

// Cuts a word into the longest pieces of a vocabulary, from left to right (Wu et al. 2016,
// arXiv:1609.08144, as BERT uses it). Pieces behind the first have a prefix in the vocabulary.
// Immutable after construction, so thread safe.
class WordPiece {
 public:
  struct Options {
    std::string continuing_prefix = "##";
    int32_t unknown_id = 0;        // of a word that has no such pieces
    int64_t max_characters = 200;  // in code points; longer words are unknown
  };

  WordPiece() = default;
  explicit WordPiece(Options options) : options_(std::move(options)) {}

  // An equal piece gets the new id.
  void add_piece(std::string_view piece, int32_t id);
  // Appends the ids of a word of valid UTF-8.
  void append(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  Options options_;
  ByteTrie first_;
  ByteTrie continuing_;  // without the prefix
};

}  // namespace megatron
