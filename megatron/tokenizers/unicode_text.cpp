#include "megatron/tokenizers/unicode_text.h"

#include <simdjson.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "megatron/tokenizers/unicode.h"

namespace megatron {
namespace {

constexpr char32_t kCapitalSigma = 0x3A3;
constexpr char32_t kFinalSigma = 0x3C2;

utf8proc_category_t category_of(char32_t value) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(value));
}

bool is_between(char32_t value, char32_t first, char32_t last) {
  return value >= first && value <= last;
}

// Circled and squared letters are symbols that count as alphabetic.
bool is_enclosed_letter(char32_t value) {
  return is_between(value, 0x24B6, 0x24E9) || is_between(value, 0x1F130, 0x1F149) ||
         is_between(value, 0x1F150, 0x1F169) || is_between(value, 0x1F170, 0x1F189);
}

// Cased, as far as a code point is not also Case_Ignorable.
bool is_cased(char32_t value) {
  switch (category_of(value)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:
      return value == 0xAA || value == 0xBA || is_between(value, 0x2160, 0x217F) ||
             is_enclosed_letter(value);
  }
}

bool is_case_ignorable(char32_t value) {
  switch (category_of(value)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      break;
  }
  // Word_Break is MidLetter, MidNumLet or Single_Quote.
  constexpr std::u32string_view kMidLetters =
      U"':.\u00B7\u0387\u055F\u05F4\u2018\u2019\u2024\u2027\uFE13\uFE52\uFE55\uFF07\uFF0E\uFF1A";
  return kMidLetters.find(value) != std::u32string_view::npos;
}

// The sigma at `position` follows a cased letter and precedes none.
bool ends_word(std::u32string_view text, size_t position) {
  size_t before = position;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = position + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(std::u32string& lower, char32_t value) {
  if (value == 0x130) {
    lower += U"i\u0307";
    return;
  }
  lower += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(value)));
}

uint8_t combining_class(char32_t value) {
  return static_cast<uint8_t>(
      utf8proc_get_property(static_cast<utf8proc_int32_t>(value))->combining_class);
}

// Marks after one base are ordered by their combining class (Unicode 15.0, D109).
void order_marks(std::u32string& text) {
  const auto is_base = [](char32_t c) { return combining_class(c) == 0; };
  for (auto begin = text.begin(); begin != text.end();) {
    begin = std::find_if_not(begin, text.end(), is_base);
    const auto end = std::find_if(begin, text.end(), is_base);
    std::stable_sort(
        begin, end, [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

bool is_white_space(char32_t value) {
  return is_between(value, 0x09, 0x0D) || value == 0x20 || value == 0x85 || value == 0xA0 ||
         value == 0x1680 || is_between(value, 0x2000, 0x200A) || value == 0x2028 ||
         value == 0x2029 || value == 0x202F || value == 0x205F || value == 0x3000;
}

bool is_letter(char32_t value) {
  const utf8proc_category_t category = category_of(value);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_number(char32_t value) {
  const utf8proc_category_t category = category_of(value);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool is_decimal_digit(char32_t value) { return category_of(value) == UTF8PROC_CATEGORY_ND; }

bool is_upper_case(char32_t value) {
  return utf8proc_isupper(static_cast<utf8proc_int32_t>(value)) != 0;
}

bool is_lower_case(char32_t value) {
  return utf8proc_islower(static_cast<utf8proc_int32_t>(value)) != 0;
}

bool is_mark(char32_t value) {
  const utf8proc_category_t category = category_of(value);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool is_nonspacing_mark(char32_t value) { return category_of(value) == UTF8PROC_CATEGORY_MN; }

bool is_space_separator(char32_t value) { return category_of(value) == UTF8PROC_CATEGORY_ZS; }

bool is_control_or_format(char32_t value) {
  const utf8proc_category_t category = category_of(value);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF;
}

bool is_private_use(char32_t value) { return category_of(value) == UTF8PROC_CATEGORY_CO; }

bool is_printable(char32_t value) {
  switch (category_of(value)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return value == 0x20;
    default:
      return true;
  }
}

bool is_punctuation(char32_t value) {
  if (value < 0x80) {
    return is_between(value, 33, 47) || is_between(value, 58, 64) || is_between(value, 91, 96) ||
           is_between(value, 123, 126);
  }
  const utf8proc_category_t category = category_of(value);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_word_character(char32_t value) {
  switch (category_of(value)) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return is_letter(value) || is_mark(value) || is_enclosed_letter(value) || value == 0x200C ||
             value == 0x200D;
  }
}

bool is_bert_ideograph(char32_t value) {
  return is_between(value, 0x4E00, 0x9FFF) || is_between(value, 0x3400, 0x4DBF) ||
         is_between(value, 0x20000, 0x2A6DF) || is_between(value, 0x2A700, 0x2B73F) ||
         is_between(value, 0x2B740, 0x2B81F) || is_between(value, 0x2B820, 0x2CEAF) ||
         is_between(value, 0xF900, 0xFAFF) || is_between(value, 0x2F800, 0x2FA1F);
}

std::u32string code_points(std::string_view text) {
  std::u32string points;
  points.reserve(text.size());
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const CodePoint c = decode_utf8(p, end);
    points += c.value;
    p += c.length;
  }
  return points;
}

std::string to_utf8(std::u32string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (const char32_t value : text) append_utf8(bytes, value);
  return bytes;
}

bool is_valid_utf8(std::string_view text) {
  return simdjson::validate_utf8(text.data(), text.size());
}

bool begins_nfc(char32_t value) {
  struct Range {
    char32_t first;
    char32_t last;
  };
  constexpr std::array<Range, 9> kRanges = {{{0, 0x2FF},
                                             {0x400, 0x481},
                                             {0x2010, 0x2027},
                                             {0x3001, 0x3029},
                                             {0x3041, 0x3096},
                                             {0x30A1, 0x30FA},
                                             {0x4E00, 0x9FFF},
                                             {0xAC00, 0xD7A3},
                                             {0x1F300, 0x1F64F}}};
  return std::any_of(kRanges.begin(), kRanges.end(), [&](const Range& range) {
    return value >= range.first && value <= range.last;
  });
}

std::u32string normalized(std::u32string_view text, NormalForm form) {
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  std::u32string result;
  result.reserve(text.size());
  std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 18 code points
  for (const char32_t value : text) {
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(value), parts.data(), static_cast<int>(parts.size()),
        static_cast<utf8proc_option_t>(options), &boundary);
    result.append(parts.begin(), parts.begin() + count);
  }
  order_marks(result);
  if (!composes) return result;
  std::vector<utf8proc_int32_t> composed(result.begin(), result.end());
  const utf8proc_ssize_t size =
      utf8proc_normalize_utf32(composed.data(), static_cast<utf8proc_ssize_t>(composed.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  return {composed.begin(), composed.begin() + size};
}

std::u32string lower_case(std::u32string_view text) {
  std::u32string lower;
  lower.reserve(text.size());
  for (const char32_t value : text) append_lower(lower, value);
  return lower;
}

std::u32string upper_case(std::u32string_view text) {
  std::u32string upper;
  for (const char32_t value : text) {
    if (value == 0xDF) {
      upper += U"SS";
    } else {
      upper += static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(value)));
    }
  }
  return upper;
}

std::u32string lower_case_in_context(std::u32string_view text) {
  std::u32string lower;
  lower.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == kCapitalSigma && ends_word(text, i)) {
      lower += kFinalSigma;
    } else {
      append_lower(lower, text[i]);
    }
  }
  return lower;
}

}  // namespace megatron
