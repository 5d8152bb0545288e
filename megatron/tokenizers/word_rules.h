#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "megatron/tokenizers/ascii_block.h"

namespace megatron {

// Differences between the patterns of Llama-3, Qwen-2, GPT-4o and TikTokenizer. In all of them a
// word of letters includes one preceding character that is not a letter, number or line end; other
// characters include a preceding blank and the line ends after them; white space ends with its last
// line end, or leaves its last blank to the next word.
struct WordRules {
  int max_digits = 3;              // of a number
  bool has_contractions = true;    // 's 't 're 've 'm 'll 'd in either case
  bool cuts_before_upper = false;  // splits before a capital after a small letter; contractions
                                   // belong to the word before them, and / to the line ends
};

namespace word_rules_detail {

inline bool is_line_end(char c) { return c == '\r' || c == '\n'; }

// Length of 's 't 're 've 'm 'll 'd in either case at `p`, which holds an apostrophe; 0 if there is
// none. The long s, U+017F, is an s.
inline int64_t contraction_length(const char* p, const char* end) {
  const auto letter = [&](int64_t i) {
    return end - p > i ? static_cast<char>(p[i] | 0x20) : '\0';
  };
  if (end - p > 2 && p[1] == '\xC5' && p[2] == '\xBF') return 3;
  const char a = letter(1);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  const char b = letter(2);
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

inline uint64_t firsts_of_runs(uint64_t set) { return set & ~(set << 1); }

// The bit `at`, or none if it is out of range.
inline uint64_t bit_at(int64_t at) { return at < 64 ? uint64_t{1} << at : 0; }

// The first digits of groups of `max_digits`.
inline uint64_t starts_of_numbers(uint64_t digits, int max_digits) {
  if (max_digits == 1) return digits;
  uint64_t starts = firsts_of_runs(digits);
  uint64_t whole_groups = digits;  // bits whose max_digits predecessors are digits, too
  for (int i = 1; i <= max_digits; ++i) whole_groups &= digits << i;
  for (uint64_t next = starts; next != 0; starts |= next) {
    next = (next << max_digits) & whole_groups;
  }
  return starts;
}

// Takes contractions out of the words around them. `apostrophes` may begin one.
inline uint64_t with_contractions(uint64_t starts, uint64_t apostrophes, const char* p,
                                  int64_t num_ascii, bool belong_to_word_before) {
  int64_t last_end = 0;
  for (; apostrophes != 0; apostrophes &= apostrophes - 1) {
    const int64_t at = std::countr_zero(apostrophes);
    const int64_t length = contraction_length(p + at, p + num_ascii);
    const bool follows_another = belong_to_word_before && at > 0 && at == last_end;
    if (length == 0 || follows_another) continue;
    last_end = at + length;
    starts &= low_bits(belong_to_word_before ? at : at + 1) | ~low_bits(last_end);
    starts |= bit_at(last_end);
  }
  return starts;
}

// The starts of words in the 64 bytes at `p`, itself a start: one bit for each start after p.
// Classifies ASCII and the signs of firsts_of_signs(). Omits starts that depend on later bytes, and
// all starts if they depend on more than a few neighbours.
inline uint64_t starts_in_block(const char* p, const WordRules& rules) {
  const AsciiBlock block(p);
  const uint64_t beyond_ascii = block.non_ascii();
  const uint64_t long_signs = beyond_ascii != 0 ? firsts_of_signs(block) : 0;
  const uint64_t understood = ~beyond_ascii | long_signs | long_signs << 1 | long_signs << 2;
  const int64_t num_understood = std::countr_one(understood);
  if (num_understood < 3) return 0;
  const uint64_t all = low_bits(num_understood);
  const uint64_t letters = block.letters();
  const uint64_t digits = block.range('0', 10);
  const uint64_t blanks = block.equal(' ');
  const uint64_t newlines = all & (block.equal('\n') | block.equal('\r'));
  const uint64_t white = all & (blanks | block.range('\t', 5));
  const uint64_t others = all & ~(letters | digits | white);

  // An addition to the first bit of a run carries through the run.
  const uint64_t behind_others = newlines & ~(newlines + ((others << 1) & newlines));
  const uint64_t spaces = white & ~behind_others;
  const uint64_t gaps = spaces & ~newlines;
  const uint64_t gaps_behind_newlines = ((newlines & spaces) << 1) & gaps;
  if (((gaps + gaps_behind_newlines) & ~gaps & newlines) != 0) return 0;

  const uint64_t lasts_of_gaps = gaps & ~(white >> 1);
  const uint64_t signs = firsts_of_runs(others) & ~(blanks << 1);
  const uint64_t ends_of_signs = (signs & ~long_signs) | (signs & long_signs) << 2;
  uint64_t starts = firsts_of_runs(spaces) | gaps_behind_newlines | lasts_of_gaps | signs |
                    (firsts_of_runs(letters) & ~((gaps | ends_of_signs) << 1)) |
                    starts_of_numbers(digits, rules.max_digits);
  uint64_t apostrophes = rules.has_contractions ? signs & block.equal('\'') : 0;
  if (rules.cuts_before_upper) {
    if ((behind_others << 1 & block.equal('/')) != 0) return 0;
    const uint64_t capitals = block.range('A', 26);
    starts |= capitals & ((letters & ~capitals) << 1);
    apostrophes &= letters << 1;
  }
  starts = with_contractions(starts, apostrophes, p, num_understood, rules.cuts_before_upper);

  uint64_t known = low_bits(num_understood - 2);
  if ((spaces >> (num_understood - 1) & 1) != 0) {
    known &= std::bit_floor(firsts_of_runs(spaces)) * 2 - 1;
  }
  return starts & known & ~uint64_t{1};
}

// Calls emit(word) for the words that end_of_word(p) finds one by one; long runs of ASCII are split
// 64 bytes at a time.
template <class EndOfWord, class Emit>
void cut_words(std::string_view text, const WordRules& rules, const EndOfWord& end_of_word,
               const Emit& emit) {
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const uint64_t starts = end - p >= AsciiBlock::kBytes ? starts_in_block(p, rules) : 0;
    if (starts != 0) {
      emit_words(p, p, starts, emit);
      continue;
    }
    const char* const word_end = end_of_word(p);
    emit(std::string_view(p, static_cast<size_t>(word_end - p)));
    p = word_end;
  }
}

}  // namespace word_rules_detail
}  // namespace megatron
