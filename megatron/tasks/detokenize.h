#pragma once

#include <optional>
#include <string>
#include <string_view>

// The corpora WikiText and Penn Treebank are stored as words with blanks between them, also before
// commas and inside quotes. A tokenizer that learnt from ordinary text does not expect this.
namespace megatron {

enum class Detokenizer { kNone, kPennTreebank, kWikiText };

// The rules that Megatron-LM chooses by the name of the file: the first of "ptb", "wiki" and
// "lambada" (which has no rules) in its path.
std::optional<Detokenizer> detokenizer_of(std::string_view path);

// The text as a writer would have typed it. Applies Megatron-LM's rules in its order, each to the
// whole text. REQUIRES: text is valid UTF-8.
std::string detokenized(std::string_view text, Detokenizer rules);

// Without white space at both ends. White space is that of Python's str.isspace().
std::string_view stripped(std::string_view text);

}  // namespace megatron
