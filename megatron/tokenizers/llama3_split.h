#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "megatron/tokenizers/gpt2_split.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron {

// The patterns that llama3_split cuts by, with digits in groups of up to three, or one by one.
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace llama3_split_detail {

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

// The end of the white space that begins at `start` and goes on to `end_of_run`, as one word.
inline const char* end_of_blanks(const char* start, const char* end_of_run, const char* end) {
  const char* p = end_of_run;
  while (p > start && !is_line_end(p[-1])) --p;
  if (p > start) return p;  // with the last end of a line
  if (end_of_run == end) return end;
  const char* const last = gpt2_split_detail::last_char(start, end_of_run);
  return last > start ? last : end_of_run;  // the last blank goes with what follows
}

}  // namespace llama3_split_detail

// Calls emit(std::string_view word) for the matches of kLlama3Pattern (max_digits 3) or
// kQwen2Pattern (1), in order; together they are the text. REQUIRES: text is valid UTF-8.
template <class Emit>
void llama3_split(std::string_view text, const CharClasses& classes, int max_digits, Emit&& emit) {
  namespace detail = llama3_split_detail;
  namespace runs = gpt2_split_detail;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char* const start = p;
    const runs::ClassifiedChar first = runs::classify(p, end, classes);
    const char* const second = p + first.length;
    const CharClass next =
        second < end ? runs::classify(second, end, classes).cls : CharClass::kSpace;
    if (const int64_t length = *p == '\'' ? detail::contraction_length(p, end) : 0; length > 0) {
      p += length;
    } else if (first.cls == CharClass::kLetter ||
               (next == CharClass::kLetter && first.cls != CharClass::kNumber &&
                !detail::is_line_end(*p))) {
      p = runs::end_of_run(second, end, CharClass::kLetter, classes);
    } else if (first.cls == CharClass::kNumber) {
      p = second;
      for (int digits = 1; digits < max_digits && p < end; ++digits) {
        const runs::ClassifiedChar digit = runs::classify(p, end, classes);
        if (digit.cls != CharClass::kNumber) break;
        p += digit.length;
      }
    } else if (first.cls == CharClass::kOther || (*p == ' ' && next == CharClass::kOther)) {
      p = runs::end_of_run(second, end, CharClass::kOther, classes);
      while (p < end && detail::is_line_end(*p)) ++p;
    } else {
      p = detail::end_of_blanks(start, runs::end_of_run(second, end, CharClass::kSpace, classes),
                                end);
    }
    emit(std::string_view(start, static_cast<size_t>(p - start)));
  }
}

}  // namespace megatron
