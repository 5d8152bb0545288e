#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/tokenizers/tokenizer.h"

namespace megatron {

// The text of tokens that come one by one. What it has given out never changes later: bytes of a
// character wait until the character is whole, and text that may become a stop string waits until
// it is known.
class TextStream {
 public:
  // `before`: the tokens that the new ones follow; some tokenizers write a word differently at the
  // beginning of a text. The tokenizer must outlive it.
  TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before,
             std::vector<std::string> stop_strings = {});

  // The text that has become certain.
  std::string push(int32_t token);
  // The rest, after the last token.
  std::string finish();
  // A stop string came: the text ends before it.
  bool is_stopped() const { return is_stopped_; }

  // Where the text of the last token that was pushed begins, in characters of all text, and its
  // bytes. A token that goes on with a character begins where this character does.
  int64_t last_begin() const { return last_begin_; }
  const std::string& last_bytes() const { return last_bytes_; }
  // Characters that were given out. Once the text is stopped or finished, the tokens that begin
  // before have a part in it.
  int64_t num_given() const { return num_given_; }
  // All text of the tokens that were pushed has been given out.
  bool has_given_all() const { return held_.empty() && given_ == tokens_.size(); }

 private:
  std::string new_text(bool is_last);
  std::string released(const std::string& text, bool is_last);
  int64_t begin_of(std::string_view token_bytes) const;

  const Tokenizer& tokenizer_;
  std::vector<std::string> stop_strings_;
  std::vector<int32_t> tokens_;  // the last of those before, then the new ones
  size_t first_ = 0;             // the tokens [first_, given_) have been given out as text
  size_t given_ = 0;
  std::string held_;            // certain, but it may be the beginning of a stop string
  std::string pending_;         // bytes of the tokens [given_, ...), which are no text yet
  std::string before_pending_;  // those of the tokens [first_, given_)
  int64_t num_certain_ = 0;     // characters of the text before them
  int64_t num_given_ = 0;
  int64_t last_begin_ = 0;
  std::string last_bytes_;
  bool is_stopped_ = false;
};

}  // namespace megatron
