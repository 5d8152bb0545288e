#pragma once

#include <optional>
#include <string>
#include <string_view>

// The corpora WikiText and Penn Treebank are stored as words separated by blanks, also before
// commas and inside quotes, unlike the text that tokenizers were trained on.
namespace megatron {

enum class Detokenizer { kNone, kPennTreebank, kWikiText };

// The rules for a file, which Megatron-LM chooses by its path: the first of "ptb", "wiki" and
// "lambada" (which has no rules) in it.
std::optional<Detokenizer> detokenizer_of(std::string_view path);

// Restores the original text. Applies Megatron-LM's rules in its order, each to the whole text.
// REQUIRES: text is valid UTF-8.
std::string detokenized(std::string_view text, Detokenizer rules);

// Strips white space (Python's str.isspace()) at both ends.
std::string_view stripped(std::string_view text);

}  // namespace megatron
