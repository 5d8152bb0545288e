#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/byte_trie.h"

namespace megatron {

// Greedy longest-match segmentation of a word, from left to right (Wu et al. 2016,
// arXiv:1609.08144, as in BERT). Pieces after the first have a prefix in the vocabulary. Immutable
// after construction, so thread safe.
class WordPiece {
 public:
  struct Options {
    std::string continuing_prefix = "##";
    int32_t unknown_id = 0;        // of a word without a segmentation
    int64_t max_characters = 200;  // in code points; longer words are unknown
  };

  WordPiece() = default;
  explicit WordPiece(Options options) : options_(std::move(options)) {}

  // Replaces the id of an existing piece.
  void add_piece(std::string_view piece, int32_t id);
  // Appends the ids of a word of valid UTF-8.
  void append(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  Options options_;
  ByteTrie first_;
  ByteTrie continuing_;  // without the prefix
};

}  // namespace megatron
