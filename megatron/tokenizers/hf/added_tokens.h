#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/byte_trie.h"

namespace megatron::hf {

// A token that is matched in text before the model tokenizes the rest.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // matches only if no word character is adjacent
  bool lstrip = false;       // includes preceding white space
  bool rstrip = false;       // includes following white space
  bool normalized = true;    // matched in normalised text
  bool special = false;
};

// Leftmost-longest matching of added tokens. Immutable, so thread safe.
class TokenFinder {
 public:
  TokenFinder() = default;
  // Of equal contents, the last one is used.
  void add(const AddedToken& token, std::string_view content);

  struct Segment {
    std::string_view text;
    int32_t id = -1;  // -1: text between tokens
  };
  // Replaces `segments` by the tokens and the text between them, in order, without empty segments.
  void split(std::string_view text, std::vector<Segment>& segments) const;

 private:
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;
  // The first position from `at` on where a token may begin, by its first two bytes; the size of
  // the text if there is none.
  size_t next_candidate(std::string_view text, size_t at) const;
  bool may_begin(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // of indices into tokens_
  std::vector<char> first_bytes_;
  std::vector<bool> begins_;  // by the first two bytes; a token of one byte has all second ones
};

}  // namespace megatron::hf
