#pragma once

#include <string_view>

namespace megatron::corpus {

// Guesses by its script and its short words whether a text is English; this is a rule of thumb, not
// a model. A text is English if
//
//   at least 80 % of its letters are A to Z, and
//   at least 8 % of its words are frequent English words that other languages hardly have ("the",
//   "and", "that", ...); of less than 20 words, at least one.
//
// A text without words is not English.
bool is_english(std::u32string_view text);

}  // namespace megatron::corpus
