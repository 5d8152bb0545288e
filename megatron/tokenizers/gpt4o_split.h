#pragma once

#include <cstdint>
#include <string_view>

#include "megatron/tokenizers/code_point_table.h"
#include "megatron/tokenizers/llama3_split.h"
#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/word_rules.h"

namespace megatron {

// The patterns of gpt4o_split: o200k's, and TikTokenizer's without contractions.
inline constexpr std::string_view kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kTikV2Pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Character classes of these patterns. Immutable, so thread safe.
class CasedClasses {
 public:
  enum class Kind : uint8_t {
    kOther,
    kUpper,    // Lu, Lt
    kLower,    // Ll
    kUncased,  // Lm, Lo: part of both
    kMark,     // M: the same, but may also precede a word
    kNumber,
    kSpace,
  };
  CasedClasses();

  Kind of(char32_t value) const { return table_.of(value); }

 private:
  CodePointTable<Kind> table_;
};

namespace word_rules_detail {

// Steps through the characters of a text.
class CasedCursor {
 public:
  using Kind = CasedClasses::Kind;

  CasedCursor(const char* p, const char* end, const CasedClasses& classes)
      : p_(p), end_(end), classes_(classes) {
    look();
  }
  const char* place() const { return p_; }
  bool is_at_end() const { return p_ == end_; }
  bool is(Kind kind) const { return p_ < end_ && kind_ == kind; }
  bool is_both() const { return is(Kind::kUncased) || is(Kind::kMark); }
  bool may_be_upper() const { return is(Kind::kUpper) || is_both(); }
  bool may_be_lower() const { return is(Kind::kLower) || is_both(); }
  bool is_letter() const { return is(Kind::kUpper) || is(Kind::kLower) || is(Kind::kUncased); }
  bool is_other() const { return is(Kind::kOther) || is(Kind::kMark); }
  void next() {
    p_ += length_;
    look();
  }

 private:
  void look() {
    if (p_ == end_) return;
    const CodePoint c = decode_utf8(p_, end_);
    kind_ = classes_.of(c.value);
    length_ = c.length;
  }

  const char* p_;
  const char* end_;
  const CasedClasses& classes_;
  Kind kind_ = Kind::kSpace;
  int64_t length_ = 0;
};

// The end of optional capitals and at least one small letter; uncased letters match both. Null if
// they do not match here.
inline const char* end_of_lower(CasedCursor at) {
  const char* end = nullptr;
  while (at.may_be_upper()) {
    const bool is_both = at.is_both();
    at.next();
    if (is_both) end = at.place();  // as a small letter
  }
  if (!at.may_be_lower()) return end;
  while (at.may_be_lower()) at.next();
  return at.place();
}

// The end of at least one capital; null if there is none.
inline const char* end_of_upper(CasedCursor at) {
  const char* const start = at.place();
  while (at.may_be_upper()) at.next();
  return at.place() > start ? at.place() : nullptr;
}

inline const char* end_of_letters(const CasedCursor& first) {
  CasedCursor second = first;
  second.next();
  const bool may_precede =
      !first.is_letter() && !first.is(CasedClasses::Kind::kNumber) && !is_line_end(*first.place());
  if (may_precede) {
    if (const char* const end = end_of_lower(second)) return end;
  }
  if (const char* const end = end_of_lower(first)) return end;
  if (may_precede) {
    if (const char* const end = end_of_upper(second)) return end;
  }
  return end_of_upper(first);
}

// The end of the word that starts at `start`. REQUIRES: start < end.
inline const char* end_of_gpt4o_word(const char* start, const char* end, const WordRules& rules,
                                     const CasedClasses& classes) {
  CasedCursor at(start, end, classes);
  if (const char* const letters = end_of_letters(at)) {
    const bool may_contract = rules.has_contractions && letters < end && *letters == '\'';
    return letters + (may_contract ? contraction_length(letters, end) : 0);
  }
  if (at.is(CasedClasses::Kind::kNumber)) {
    for (int i = 0; i < rules.max_digits && at.is(CasedClasses::Kind::kNumber); ++i) at.next();
    return at.place();
  }
  const bool is_white = at.is(CasedClasses::Kind::kSpace);
  const bool is_blank = *start == ' ';
  at.next();
  if (!is_white || (is_blank && at.is_other())) {
    while (at.is_other()) at.next();
    const char* p = at.place();
    while (p < end && (is_line_end(*p) || *p == '/')) ++p;
    return p;
  }
  while (at.is(CasedClasses::Kind::kSpace)) at.next();
  return end_of_blanks(start, at.place(), end);
}

}  // namespace word_rules_detail

// Calls emit(std::string_view word) for the matches of kGpt4oPattern (max_digits 3) or
// kTikV2Pattern (1, no contractions), in order; concatenated, they are the text. REQUIRES: text is
// valid UTF-8, and cuts before capitals.
template <class Emit>
void gpt4o_split(std::string_view text, const WordRules& rules, const CasedClasses& classes,
                 const Emit& emit) {
  const char* const end = text.data() + text.size();
  word_rules_detail::cut_words(
      text, rules,
      [&](const char* p) { return word_rules_detail::end_of_gpt4o_word(p, end, rules, classes); },
      emit);
}

}  // namespace megatron
