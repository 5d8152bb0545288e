#include "megatron/tokenizers/bert_words.h"

#include "megatron/tokenizers/unicode_text.h"

namespace megatron {
namespace {

BertWords::Kind bert_kind_of(char32_t value) {
  using Kind = BertWords::Kind;
  if (value == '\t' || value == '\n' || value == '\r' || is_space_separator(value) ||
      value == 0x2028 || value == 0x2029) {
    return Kind::kBlank;
  }
  if (value == 0 || value == 0xFFFD || is_control_or_format(value)) return Kind::kDropped;
  if (is_bert_ideograph(value)) return Kind::kIdeograph;
  return value < 0x80 && is_punctuation(value) ? Kind::kPunctuation : Kind::kWord;
}

}  // namespace

BertWords::BertWords(bool lower_case) : lower_case_(lower_case), kinds_(bert_kind_of) {
  for (char32_t byte = 0; byte < 256; ++byte) {
    byte_kinds_[byte] = byte < 0x80 ? kinds_.of(byte) : Kind::kNonAscii;
  }
}

const char* BertWords::end_of_run(const char* p, const char* end) const {
  while (p < end) {
    const CodePoint c = decode_utf8(p, end);
    if (of(c.value) == Kind::kBlank || of(c.value) == Kind::kIdeograph) break;
    p += c.length;
  }
  return p;
}

std::u32string BertWords::prepared(std::string_view run) const {
  std::u32string text = code_points(run);
  std::erase_if(text, [&](char32_t c) { return of(c) == Kind::kDropped; });
  if (lower_case_) {
    text = normalized(lower_case_in_context(text), NormalForm::kNfd);
    std::erase_if(text, is_nonspacing_mark);
  }
  return text;
}

size_t BertWords::end_of_word(std::u32string_view text, size_t begin) {
  size_t end = begin + 1;
  if (is_punctuation(text[begin])) return end;
  while (end < text.size() && !is_punctuation(text[end])) ++end;
  return end;
}

std::string BertWords::utf8(std::u32string_view text, size_t begin, size_t end) {
  return to_utf8(text.substr(begin, end - begin));
}

}  // namespace megatron
