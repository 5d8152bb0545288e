#pragma once

#include <string>
#include <string_view>

namespace megatron::corpus {

// Repairs a text by these rules, in this order:
//
//   terminal       sequences ESC [ ... m vanish
//   wrong decoding a run of characters that are the bytes of UTF-8, read as Windows-1252 or
//                  Latin-1, becomes the character of these bytes ("\u00C3\u00A9" is U+00E9); again,
//                  up to three times
//   ligatures      U+FB00 ... U+FB06 become letters
//   width          full-width forms of ASCII characters, and the ideographic space, become ASCII
//   quotes         curly quotes become ' and "
//   line ends      \r\n, \r, U+0085, U+2028 and U+2029 become \n
//   controls       control characters vanish, except \t \n \f, and so do U+FEFF, U+206A ... U+206F
//                  and U+FFF9 ... U+FFFC
//   form           NFC (Unicode 15.0)
//
// Compat: approximates the defaults of ftfy, which weighs how likely a sequence is. Here, a
// sequence of two characters only counts if it begins like one of a Latin letter or sign (first
// bytes C2 to C5; C4 and C5 not in front of a quote or dash), or if it stands beside another one
// of its alphabet (Greek, Cyrillic: CE, CF, D0, D1). Sequences of three and four always count.
std::u32string repaired(std::u32string_view text);
std::string repaired(std::string_view utf8);

}  // namespace megatron::corpus
