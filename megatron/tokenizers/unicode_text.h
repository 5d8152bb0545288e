#pragma once

#include <string>
#include <string_view>

namespace megatron {

// Properties of code points and forms of text. All data are those of utf8proc: Unicode 15.0 in its
// version 2.8. Functions are pure and thread safe.

// White_Space: the 25 code points of \s, without U+001C-001F, U+180E and U+200B.
bool is_white_space(char32_t value);
bool is_letter(char32_t value);             // categories L*
bool is_number(char32_t value);             // N*
bool is_decimal_digit(char32_t value);      // Nd
bool is_upper_case(char32_t value);         // Lu and other code points with the property Uppercase
bool is_lower_case(char32_t value);         // Ll and other code points with the property Lowercase
bool is_mark(char32_t value);               // M*
bool is_nonspacing_mark(char32_t value);    // Mn
bool is_space_separator(char32_t value);    // Zs
bool is_control_or_format(char32_t value);  // Cc, Cf
bool is_private_use(char32_t value);        // Co
bool is_printable(char32_t value);          // not C*, Zl, Zp or Zs; U+0020 is
bool is_punctuation(char32_t value);        // P*, and all ASCII symbols
// \w: alphabetic characters, marks, decimal digits, connectors, joiners.
bool is_word_character(char32_t value);
// The blocks of ideographs that BERT isolates; without kana and Hangul.
bool is_bert_ideograph(char32_t value);

// Invalid sequences become U+FFFD, as in decode_utf8.
std::u32string code_points(std::string_view text);
std::string to_utf8(std::u32string_view text);
bool is_valid_utf8(std::string_view text);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::u32string normalized(std::u32string_view text, NormalForm form);
// True if NFC neither changes the code point nor composes it with preceding ones, so that text can
// be normalized from here on separately. Conservative: true only for the most frequent ones.
bool begins_nfc(char32_t value);

// Lower case of each code point on its own: U+0130 becomes two.
std::u32string lower_case(std::u32string_view text);
// Upper case of each code point on its own: U+00DF becomes SS; of other code points, only those
// mappings that do not change the number of code points.
std::u32string upper_case(std::u32string_view text);
// The same as lower_case(), but U+03A3 at the end of a word becomes U+03C2 (Unicode 15.0,
// sec. 3.13).
std::u32string lower_case_in_context(std::u32string_view text);

}  // namespace megatron
