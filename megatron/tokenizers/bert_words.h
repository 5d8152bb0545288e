#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "megatron/tokenizers/code_point_table.h"
#include "megatron/tokenizers/unicode.h"

namespace megatron {

// BERT's pre-tokenization: removes control characters, splits at blanks and around ideographs and
// punctuation, and optionally lower-cases and strips accents. Immutable, so thread safe.
class BertWords {
 public:
  // Character classes of the first pass over text.
  enum class Kind : uint8_t {
    kWord,         // part of a word
    kBlank,        // ends a word
    kPunctuation,  // a separate word; ASCII only
    kDropped,      // removed; its neighbours join
    kIdeograph,    // a separate word
    kNonAscii,     // of a byte only: look at the whole code point
  };

  explicit BertWords(bool lower_case);

  bool lower_case() const { return lower_case_; }
  Kind of(char32_t value) const { return kinds_.of(value); }
  Kind of_byte(char byte) const { return byte_kinds_[static_cast<uint8_t>(byte)]; }

  // Calls emit(std::string) for the words of a run: a part of a text without blanks, and either one
  // ideograph or none. Lower case depends on neighbours within the run.
  template <class Emit>
  void cut_run(std::string_view run, Emit&& emit) const {
    const std::u32string text = prepared(run);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = end_of_word(text, begin);
      emit(utf8(text, begin, end));
      begin = end;
    }
  }

  // The same for a whole text.
  template <class Emit>
  void cut(std::string_view text, Emit&& emit) const {
    const char* const end = text.data() + text.size();
    for (const char* p = text.data(); p < end;) {
      const char* const begin = p;
      const CodePoint first = decode_utf8(p, end);
      p += first.length;
      if (of(first.value) == Kind::kBlank) continue;
      if (of(first.value) != Kind::kIdeograph) p = end_of_run(p, end);
      cut_run({begin, static_cast<size_t>(p - begin)}, emit);
    }
  }

  // The next blank or ideograph from `p` on.
  const char* end_of_run(const char* p, const char* end) const;

 private:
  std::u32string prepared(std::string_view run) const;
  static size_t end_of_word(std::u32string_view text, size_t begin);
  static std::string utf8(std::u32string_view text, size_t begin, size_t end);

  bool lower_case_;
  CodePointTable<Kind> kinds_;
  std::array<Kind, 256> byte_kinds_;
};

}  // namespace megatron
