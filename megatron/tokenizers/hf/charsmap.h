#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::hf {

// The compiled rules of a SentencePiece normalizer: a double-array trie (Aoe 1989) of strings, and
// their replacements.
//
//   bytes: u32 size of the trie in bytes, the trie as u32 units, replacements that end with NUL
//
// Immutable, so thread safe.
class Charsmap {
 public:
  // Throws FormatError if sizes do not fit.
  explicit Charsmap(const std::string& bytes);

  // Applied as Hugging Face does, one grapheme cluster at a time: a cluster of up to 5 bytes is
  // replaced as a whole if a rule matches its beginning, else code point by code point.
  std::string apply(std::string_view text) const;

 private:
  // The replacement of the shortest prefix of `text` with a rule; nothing if there is none.
  std::optional<std::string_view> replacement_of(std::string_view text) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
  std::array<std::optional<std::string>, 128> ascii_;  // replacements of clusters of one character
};

}  // namespace megatron::hf
