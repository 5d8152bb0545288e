#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/byte_trie.h"

namespace megatron {

// The most probable division of a text into pieces that have log probabilities (Kudo 2018,
// arXiv:1804.10959), word by word, exactly as the SentencePiece library finds it.
//
// The library sums scores in fp32 from the beginning of the text on, so that rounding decides
// between divisions of a word whose scores are close, and a word may be divided in another way
// behind another text. So a division carries the largest sum behind which rounding cannot change
// it. Immutable after construction, so thread safe.
class UnigramWords {
 public:
  // A character that is no piece is unknown, and ranks far behind the least probable piece.
  // REQUIRES: add_piece() is called once for each piece that text may become.
  explicit UnigramWords(int32_t unknown_id) : unknown_id_(unknown_id) {}
  void add_piece(std::string_view piece, int32_t id, float score);

  int32_t unknown_id() const { return unknown_id_; }
  float score(int32_t id) const {
    return id == unknown_id_ ? unknown_score() : scores_[static_cast<size_t>(id)];
  }
  // Appends the best division of a word behind a text of the score `before`; a run of unknown
  // characters is as many unknown pieces. REQUIRES: valid UTF-8.
  void divide(std::string_view word, float before, std::vector<int32_t>& ids) const;
  // Appends the best division that rounding allows for each |before| less than the result: that of
  // exact sums. Not more than 0: for none.
  float divide_exactly(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  float unknown_score() const { return least_score_ - 10; }
  // Calls consider(begin, end, id) for the pieces of the word, by their begin, then by their
  // length. Returns the number of characters.
  template <class Consider>
  int64_t for_each_piece(std::string_view word, const Consider& consider) const;

  int32_t unknown_id_;
  std::vector<float> scores_;  // by id
  float least_score_ = 0;
  float largest_magnitude_ = 0;
  ByteTrie trie_;
};

// Whether the rules of a SentencePiece normalizer change each word of a text alone: none has a
// blank in it but for the one of a blank alone, none makes U+2581 or two blanks. True for no rules.
bool rules_keep_to_words(std::string_view charsmap);

}  // namespace megatron
