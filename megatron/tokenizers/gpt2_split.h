#pragma once

#include <cstdint>
#include <string_view>

#include "megatron/tokenizers/ascii_letters.h"
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

// The end of the run of `cls` that goes on at `p`.
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

}  // namespace gpt2_split_detail

// Calls emit(std::string_view piece) for the pieces of GPT-2's pre-tokenisation, in order; together
// they are the text. The same as the matches of
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// Bytes that are not UTF-8 count as symbols.
template <class Emit>
void gpt2_split(std::string_view text, const CharClasses& classes, Emit&& emit) {
  namespace detail = gpt2_split_detail;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const char* const start = p;
    // Most words are a few ASCII letters, with or without a blank; the byte behind them is ASCII.
    const char* const letters = p + (*p == ' ' ? 1 : 0);
    const int64_t count = count_ascii_letters(letters, end);
    if (count > 0 && static_cast<uint8_t>(letters[count]) < 0x80) {
      p = letters + count;
      emit(std::string_view(start, static_cast<size_t>(p - start)));
      continue;
    }
    if (*p == '\'') {
      const int64_t length = detail::contraction_length(p, end);
      if (length > 0) {
        emit(std::string_view(start, static_cast<size_t>(length)));
        p += length;
        continue;
      }
    }
    detail::ClassifiedChar first = detail::classify(p, end, classes);
    if (*p == ' ' && p + 1 < end) {
      const detail::ClassifiedChar next = detail::classify(p + 1, end, classes);
      if (next.cls != CharClass::kSpace) {
        first = next;
        ++p;
      }
    }
    p = detail::end_of_run(p + first.length, end, first.cls, classes);
    if (first.cls == CharClass::kSpace && p < end) {
      const char* const last = detail::last_char(start, p);
      if (last > start) p = last;  // the last blank goes with what follows
    }
    emit(std::string_view(start, static_cast<size_t>(p - start)));
  }
}

}  // namespace megatron
