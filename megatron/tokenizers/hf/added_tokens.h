#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/byte_trie.h"

namespace megatron::hf {

// A token that is looked for in text before the model gets it.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only between characters that belong to no word
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and that behind it
  bool normalized = true;    // looked for in normalised text
  bool special = false;
};

// Finds tokens in a text: the leftmost, and of those the longest. Immutable, so thread safe.
class TokenFinder {
 public:
  TokenFinder() = default;
  // Equal contents: the last one counts.
  void add(const AddedToken& token, std::string_view content);

  struct Segment {
    std::string_view text;
    int32_t id = -1;  // -1: text between tokens
  };
  // Replaces `segments` by the tokens and the text around them, in order. There are no empty ones.
  void split(std::string_view text, std::vector<Segment>& segments) const;

 private:
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;
  // The first place from `at` on where a token may begin, by its first two bytes; the size of the
  // text if there is none.
  size_t next_candidate(std::string_view text, size_t at) const;
  bool may_begin(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // of places in tokens_
  std::vector<char> first_bytes_;
  std::vector<bool> begins_;  // by the first two bytes; a token of one byte has all second ones
};

}  // namespace megatron::hf
