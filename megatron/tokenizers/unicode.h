#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// One code point of UTF-8 text and its length in bytes.
struct CodePoint {
  char32_t value = 0;
  int64_t length = 0;
};

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

// The code point at `p`. An invalid sequence gives U+FFFD with the length of its maximal valid
// prefix (at least 1). REQUIRES: p < end.
CodePoint decode_utf8(const char* p, const char* end);
// The code point that ends at `end`. REQUIRES: begin < end, valid UTF-8.
CodePoint last_code_point(const char* begin, const char* end);
// Writes the UTF-8 bytes of a code point, at most four, and returns their end. REQUIRES: value <=
// U+10FFFF and not a surrogate.
char* write_utf8(char* to, char32_t value);
// Appends the UTF-8 bytes of a code point. REQUIRES: value <= U+10FFFF and not a surrogate.
void append_utf8(std::string& text, char32_t value);
// The text with each maximal invalid subpart replaced by one U+FFFD, as Python's errors="replace".
std::string with_valid_utf8(std::string_view text);
// Code points of valid UTF-8.
int64_t num_characters(std::string_view text);

// Character classes of the byte-level pre-tokenizers.
enum class CharClass : uint8_t {
  kOther,     // marks, punctuation, symbols, controls, unassigned
  kLetter,    // \p{L}
  kNumber,    // \p{N}
  kSpace,     // White_Space: the 25 code points of \s, without U+001C-001F, U+180E and U+200B
  kNonAscii,  // in ascii() only: look at the whole code point
};

// The class of every code point, as a two-stage table over blocks of 256 (about 50 KB).
// Categories are those of the Unicode version of utf8proc. Immutable, so thread safe.
class CharClasses {
 public:
  CharClasses();

  CharClass of(char32_t value) const {
    return value < kTableEnd ? cells_[size_t{blocks_[value >> 8]} * 256 + (value & 255)]
                             : CharClass::kOther;
  }
  // Class of a byte; kNonAscii from 0x80 on.
  CharClass ascii(char byte) const { return ascii_[static_cast<uint8_t>(byte)]; }

 private:
  // No letter, number or white space lies above the third plane.
  static constexpr char32_t kTableEnd = 0x40000;

  std::array<CharClass, 256> ascii_;
  std::array<uint16_t, kTableEnd / 256> blocks_;
  std::vector<CharClass> cells_;
};

}  // namespace megatron
