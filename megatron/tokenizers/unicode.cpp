#include "megatron/tokenizers/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <map>

namespace megatron {
namespace {

bool is_white_space(char32_t value) {
  return (value >= 0x09 && value <= 0x0D) || value == 0x20 || value == 0x85 || value == 0xA0 ||
         value == 0x1680 || (value >= 0x2000 && value <= 0x200A) || value == 0x2028 ||
         value == 0x2029 || value == 0x202F || value == 0x205F || value == 0x3000;
}

CharClass class_of(char32_t value) {
  if (is_white_space(value)) return CharClass::kSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(value))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    default:
      return CharClass::kOther;
  }
}

// The bytes that may follow a lead byte, and how many there must be (Unicode 15.0, table 3-7).
struct LeadByte {
  int following = 0;  // 0: not a lead byte
  uint8_t second_low = 0x80;
  uint8_t second_high = 0xBF;
};

LeadByte lead_byte(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {};
}

}  // namespace

CodePoint decode_utf8(const char* p, const char* end) {
  const auto first = static_cast<uint8_t>(*p);
  if (first < 0x80) return {first, 1};
  const LeadByte lead = lead_byte(first);
  char32_t value = first & (0x3Fu >> lead.following);
  int64_t length = 1;
  for (int i = 0; i < lead.following; ++i, ++length) {
    if (p + length == end) return {kReplacementCharacter, length};
    const auto byte = static_cast<uint8_t>(p[length]);
    const bool fits =
        i == 0 ? byte >= lead.second_low && byte <= lead.second_high : byte >= 0x80 && byte <= 0xBF;
    if (!fits) return {kReplacementCharacter, length};
    value = (value << 6) | (byte & 0x3Fu);
  }
  return {lead.following == 0 ? kReplacementCharacter : value, length};
}

CodePoint last_code_point(const char* begin, const char* end) {
  const char* p = end - 1;
  while (p > begin && (static_cast<uint8_t>(*p) & 0xC0u) == 0x80u) --p;
  return decode_utf8(p, end);
}

char* write_utf8(char* to, char32_t value) {
  if (value < 0x80) {
    *to++ = static_cast<char>(value);
    return to;
  }
  const int following = value < 0x800 ? 1 : value < 0x10000 ? 2 : 3;
  const char32_t lead = following == 1 ? 0xC0u : following == 2 ? 0xE0u : 0xF0u;
  *to++ = static_cast<char>(lead | (value >> (6 * following)));
  for (int i = following - 1; i >= 0; --i) {
    *to++ = static_cast<char>(0x80u | ((value >> (6 * i)) & 0x3Fu));
  }
  return to;
}

void append_utf8(std::string& text, char32_t value) {
  std::array<char, 4> bytes;
  text.append(bytes.data(), static_cast<size_t>(write_utf8(bytes.data(), value) - bytes.data()));
}

std::string with_valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const CodePoint c = decode_utf8(p, end);
    append_utf8(valid, c.value);
    p += c.length;
  }
  return valid;
}

int64_t num_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<uint8_t>(byte) & 0xC0u) != 0x80u; });
}

CharClasses::CharClasses() {
  std::map<std::array<CharClass, 256>, uint16_t> known;
  for (char32_t block = 0; block < blocks_.size(); ++block) {
    std::array<CharClass, 256> cells{};
    for (char32_t i = 0; i < 256; ++i) cells[i] = class_of(block * 256 + i);
    const auto [entry, is_new] = known.emplace(cells, static_cast<uint16_t>(known.size()));
    if (is_new) cells_.insert(cells_.end(), cells.begin(), cells.end());
    blocks_[block] = entry->second;
  }
  ascii_.fill(CharClass::kNonAscii);
  std::copy_n(cells_.begin(), 128, ascii_.begin());  // block 0 is the first that was stored
}

}  // namespace megatron
