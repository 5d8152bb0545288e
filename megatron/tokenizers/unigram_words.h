#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/byte_trie.h"

namespace megatron {

// The most probable segmentation of a text into pieces with log probabilities (Kudo 2018,
// arXiv:1804.10959), word by word, identical to that of the SentencePiece library.
//
// The library sums scores in fp32 from the beginning of the text, so rounding decides between
// segmentations of a word with close scores, and the same word may be segmented differently after
// another text. A result therefore includes the largest preceding sum up to which rounding cannot
// change it. Immutable after construction, so thread safe.
class UnigramWords {
 public:
  // A character that is not a piece is unknown, and much less probable than any piece. REQUIRES:
  // add_piece() is called once for each piece.
  explicit UnigramWords(int32_t unknown_id) : unknown_id_(unknown_id) {}
  void add_piece(std::string_view piece, int32_t id, float score);

  int32_t unknown_id() const { return unknown_id_; }
  float score(int32_t id) const {
    return id == unknown_id_ ? unknown_score() : scores_[static_cast<size_t>(id)];
  }
  // Appends the best segmentation of a word after a text with the score `before`; each unknown
  // character becomes an unknown piece. REQUIRES: valid UTF-8.
  void divide(std::string_view word, float before, std::vector<int32_t>& ids) const;
  // Appends the best segmentation by exact sums. It is the library's for each |before| below the
  // returned bound; for none if that is not positive.
  float divide_exactly(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  float unknown_score() const { return least_score_ - 10; }
  // Calls consider(begin, end, id) for the pieces of the word, ordered by begin, then by length.
  // Returns the number of characters.
  template <class Consider>
  int64_t for_each_piece(std::string_view word, const Consider& consider) const;

  int32_t unknown_id_;
  std::vector<float> scores_;  // by id
  float least_score_ = 0;
  float largest_magnitude_ = 0;
  ByteTrie trie_;
};

// True if a SentencePiece normalizer changes each word of a text independently: no rule contains a
// blank, except one for a single blank, and none produces U+2581 or two blanks. True without rules.
bool rules_keep_to_words(std::string_view charsmap);

}  // namespace megatron
