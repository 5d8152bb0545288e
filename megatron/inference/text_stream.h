#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// Incremental detokenization. Text that was returned never changes later: bytes wait until their
// character is complete, and a possible beginning of a stop string waits until it is decided.
class TextStream {
 public:
  // `before`: the tokens before the new ones; some tokenizers decode a word differently at the
  // beginning of a text. The tokenizer must outlive it.
  TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before,
             std::vector<std::string> stop_strings = {});

  // Appends a token; returns the text that has become final.
  std::string push(int32_t token);
  // Returns the rest, after the last token.
  std::string finish();
  // True after a stop string; the text ends before it.
  bool is_stopped() const { return is_stopped_; }

  // Position of the last pushed token, in characters of the whole text, and its bytes. A token that
  // continues a character has the position of this character.
  int64_t last_begin() const { return last_begin_; }
  const std::string& last_bytes() const { return last_bytes_; }
  // Characters returned so far. Once the text is stopped or finished, tokens that begin before this
  // position contribute to it.
  int64_t num_given() const { return num_given_; }
  // True if all text of the pushed tokens has been returned.
  bool has_given_all() const { return held_.empty() && given_ == tokens_.size(); }

 private:
  std::string new_text(bool is_last);
  std::string released(const std::string& text, bool is_last);
  int64_t begin_of(std::string_view token_bytes) const;

  const Tokenizer& tokenizer_;
  std::vector<std::string> stop_strings_;
  std::vector<int32_t> tokens_;  // the last tokens of `before`, then the new ones
  size_t first_ = 0;             // text of the tokens [first_, given_) has been returned
  size_t given_ = 0;
  std::string held_;            // final, but possibly the beginning of a stop string
  std::string pending_;         // bytes of the tokens [given_, ...), incomplete characters
  std::string before_pending_;  // bytes of the tokens [first_, given_)
  int64_t num_certain_ = 0;     // characters of the text before them
  int64_t num_given_ = 0;
  int64_t last_begin_ = 0;
  std::string last_bytes_;
  bool is_stopped_ = false;
};

}  // namespace megatron
