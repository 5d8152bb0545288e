#pragma once

#include <cstdint>
#include <string_view>

#include "megatron/tokenizers/gpt2_split.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/word_rules.h"

namespace megatron {

// The patterns of llama3_split, with digits in groups of up to three, or one by one.
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
// Without contractions.
inline constexpr std::string_view kTikV1Pattern =
    R"([^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";

namespace word_rules_detail {

// The end of the word of white space that begins at `start`; the white space ends at `end_of_run`.
inline const char* end_of_blanks(const char* start, const char* end_of_run, const char* end) {
  const char* p = end_of_run;
  while (p > start && !is_line_end(p[-1])) --p;
  if (p > start) return p;  // with the last end of a line
  if (end_of_run == end) return end;
  const char* const last = gpt2_split_detail::last_char(start, end_of_run);
  return last > start ? last : end_of_run;  // the last blank belongs to the next word
}

// The end of the word that starts at `start`. REQUIRES: start < end.
inline const char* end_of_llama3_word(const char* start, const char* end, const WordRules& rules,
                                      const CharClasses& classes) {
  namespace runs = gpt2_split_detail;
  const runs::ClassifiedChar first = runs::classify(start, end, classes);
  const char* const second = start + first.length;
  const CharClass next =
      second < end ? runs::classify(second, end, classes).cls : CharClass::kSpace;
  if (rules.has_contractions && *start == '\'') {
    if (const int64_t length = contraction_length(start, end); length > 0) return start + length;
  }
  if (first.cls == CharClass::kLetter ||
      (next == CharClass::kLetter && first.cls != CharClass::kNumber && !is_line_end(*start))) {
    return runs::end_of_run(second, end, CharClass::kLetter, classes);
  }
  const char* p = second;
  if (first.cls == CharClass::kNumber) {
    for (int digits = 1; digits < rules.max_digits && p < end; ++digits) {
      const runs::ClassifiedChar digit = runs::classify(p, end, classes);
      if (digit.cls != CharClass::kNumber) break;
      p += digit.length;
    }
    return p;
  }
  if (first.cls == CharClass::kOther || (*start == ' ' && next == CharClass::kOther)) {
    p = runs::end_of_run(second, end, CharClass::kOther, classes);
    while (p < end && is_line_end(*p)) ++p;
    return p;
  }
  return end_of_blanks(start, runs::end_of_run(second, end, CharClass::kSpace, classes), end);
}

}  // namespace word_rules_detail

// Calls emit(std::string_view word) for the matches of kLlama3Pattern (max_digits 3), kQwen2Pattern
// (1) or kTikV1Pattern (1, no contractions), in order; concatenated, they are the text. REQUIRES:
// text is valid UTF-8, and no cuts before capitals.
template <class Emit>
void llama3_split(std::string_view text, const WordRules& rules, const CharClasses& classes,
                  const Emit& emit) {
  const char* const end = text.data() + text.size();
  word_rules_detail::cut_words(
      text, rules,
      [&](const char* p) { return word_rules_detail::end_of_llama3_word(p, end, rules, classes); },
      emit);
}

}  // namespace megatron
