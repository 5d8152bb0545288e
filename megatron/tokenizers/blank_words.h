#pragma once

#include <algorithm>
#include <string_view>

namespace megatron {

// U+2581, which represents a blank in the pieces of SentencePiece.
inline constexpr std::string_view kBlankMark = "\xE2\x96\x81";

// True if the piece has U+2581 only at its beginning. If this holds for all pieces, no piece spans
// two words.
inline bool keeps_to_words(std::string_view piece) {
  while (piece.starts_with(kBlankMark)) piece.remove_prefix(kBlankMark.size());
  return piece.find(kBlankMark) == std::string_view::npos;
}

// Calls emit(word) for the words of a text, for an encoder that puts a blank before each text: if
// no piece spans two words, the concatenated ids of the words are those of the text. So each word
// but the first omits one of the blanks before it, which the encoder adds. Blanks at the end belong
// to the last word.
template <class Emit>
void cut_blank_words(std::string_view text, bool removes_extra_blanks, const Emit& emit) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t letter = text.find_first_not_of(' ', begin);
    if (letter == std::string_view::npos && removes_extra_blanks) return;
    size_t end = std::min(text.find(' ', std::min(letter, text.size())), text.size());
    if (text.find_first_not_of(' ', end) == std::string_view::npos) end = text.size();
    const size_t own = begin == 0 ? 0 : begin + 1;
    emit(text.substr(own, end - own));
    begin = end;
  }
}

}  // namespace megatron
