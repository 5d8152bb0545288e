#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>

#include "megatron/tokenizers/ascii_block.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron {

namespace gpt2_split_detail {

// Length of 's 't 're 've 'm 'll 'd at `p`, which holds an apostrophe; 0 if there is none.
inline int64_t contraction_length(const char* p, const char* end) {
  if (end - p < 2) return 0;
  const char a = p[1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (end - p < 3) return 0;
  const char b = p[2];
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

struct ClassifiedChar {
  CharClass cls;
  int64_t length;
};

inline ClassifiedChar classify(const char* p, const char* end, const CharClasses& classes) {
  const CharClass quick = classes.ascii(*p);
  if (quick != CharClass::kNonAscii) return {quick, 1};
  const CodePoint c = decode_utf8(p, end);
  return {classes.of(c.value), c.length};
}

// The end of the run of `cls` that continues at `p`.
inline const char* end_of_run(const char* p, const char* end, CharClass cls,
                              const CharClasses& classes) {
  while (p < end) {
    const CharClass quick = classes.ascii(*p);
    if (quick == cls) {
      ++p;
    } else if (quick != CharClass::kNonAscii) {
      break;
    } else {
      const CodePoint c = decode_utf8(p, end);
      if (classes.of(c.value) != cls) break;
      p += c.length;
    }
  }
  return p;
}

// Start of the last character of the white-space run [begin, end).
inline const char* last_char(const char* begin, const char* end) {
  const char* p = end - 1;
  while (p > begin && (static_cast<uint8_t>(*p) & 0xC0u) == 0x80u) --p;
  return p;
}

// The end of the word that starts at `p`. REQUIRES: p < end.
inline const char* end_of_word(const char* p, const char* end, const CharClasses& classes) {
  const char* const start = p;
  if (*p == '\'') {
    const int64_t length = contraction_length(p, end);
    if (length > 0) return p + length;
  }
  ClassifiedChar first = classify(p, end, classes);
  if (*p == ' ' && p + 1 < end) {
    const ClassifiedChar next = classify(p + 1, end, classes);
    if (next.cls != CharClass::kSpace) {
      first = next;
      ++p;
    }
  }
  p = end_of_run(p + first.length, end, first.cls, classes);
  if (first.cls == CharClass::kSpace && p < end) {
    const char* const last = last_char(start, p);
    if (last > start) p = last;  // the last blank belongs to the next word
  }
  return p;
}

// The starts of words in a block of 64 bytes.
struct BlockStarts {
  uint64_t starts;  // one bit for each
  // Bits from here on may be wrong: they depend on later bytes that are not classified.
  int64_t known;
};

// Starts are known from this offset of a block on, whatever precedes the block: a contraction has
// up to three bytes.
inline constexpr int64_t kBefore = 4;

// Classifies ASCII and U+2010 to U+2027 (dashes, quotes and dots, which count as other characters).
inline BlockStarts starts_in_block(const char* p) {
  const AsciiBlock block(p);
  const uint64_t beyond_ascii = block.non_ascii();
  uint64_t signs = 0;
  if (beyond_ascii != 0) {
    signs = firsts_of_signs(block);
    signs |= signs << 1 | signs << 2;
  }
  const int64_t num_understood = std::countr_zero(beyond_ascii & ~signs);
  const uint64_t letters = block.letters();
  const uint64_t digits = block.range('0', 10);
  const uint64_t blanks = block.equal(' ');
  const uint64_t spaces = blanks | block.range('\t', 5);
  const uint64_t others = ~(letters | digits | spaces);
  const auto firsts_of_runs = [](uint64_t set) { return set & ~(set << 1); };

  const uint64_t runs = firsts_of_runs(letters) | firsts_of_runs(digits) | firsts_of_runs(others);
  const uint64_t behind_blank = runs & (blanks << 1);  // the blank belongs to the word
  const uint64_t lasts_of_spaces = spaces & ~(spaces >> 1);
  uint64_t starts = (runs & ~behind_blank) | firsts_of_runs(spaces) | lasts_of_spaces;

  uint64_t apostrophes = starts & block.equal('\'');
  for (; apostrophes != 0; apostrophes &= apostrophes - 1) {
    const int at = std::countr_zero(apostrophes);
    const int64_t length = contraction_length(p + at, p + AsciiBlock::kBytes);
    if (length == 0) continue;
    starts &= ~(uint64_t{2} << at);
    starts |= length < 64 - at ? uint64_t{1} << (at + length) : 0;
  }
  return {starts, num_understood - 1};
}

}  // namespace gpt2_split_detail

// Calls emit(std::string_view piece) for the pieces of GPT-2's pre-tokenisation, in order;
// concatenated, they are the text. Equal to the matches of
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// Bytes that are not UTF-8 count as symbols.
template <class Emit>
void gpt2_split(std::string_view text, const CharClasses& classes, const Emit& emit) {
  namespace detail = gpt2_split_detail;
  const char* word = text.data();
  const char* const end = word + text.size();
  while (word < end) {
    // Blocks overlap, so that each is classified independently of the previous one.
    const char* block = word;
    for (int64_t from = 1; end - block >= AsciiBlock::kBytes; from = detail::kBefore) {
      const auto [starts, known] = detail::starts_in_block(block);
      if (known <= detail::kBefore) break;
      emit_words(word, block, starts & low_bits(known) & ~low_bits(from), emit);
      block += known - detail::kBefore;
    }
    const char* const word_end = detail::end_of_word(word, end, classes);
    emit(std::string_view(word, static_cast<size_t>(word_end - word)));
    word = word_end;
  }
}

}  // namespace megatron
