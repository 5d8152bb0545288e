#include "annex/corpus/text_repair.h"

#include <array>
#include <cstdint>
#include <optional>

#include "megatron/tokenizers/unicode.h"
#include "megatron/tokenizers/unicode_text.h"

namespace megatron::corpus {
namespace {

constexpr int kMaxDecodings = 3;
constexpr size_t kLongestSequence = 4;  // bytes of UTF-8

// The characters of bytes 0x80 to 0x9F in Windows-1252; 0: none, Latin-1's control character.
constexpr std::array<char32_t, 32> kWindows1252 = {
    0x20AC, 0,      0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
    0x2039, 0x0152, 0,      0x017D, 0,      0,      0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0,      0x017E, 0x0178};

// The byte that was read as this character; only bytes of UTF-8 sequences.
std::optional<uint8_t> byte_of(char32_t c) {
  if (c >= 0x80 && c <= 0xFF) return static_cast<uint8_t>(c);
  for (size_t i = 0; i < kWindows1252.size(); ++i) {
    if (kWindows1252[i] == c && c != 0) return static_cast<uint8_t>(0x80 + i);
  }
  return std::nullopt;
}

bool is_quote_or_dash(char32_t c) {
  return (c >= 0x2013 && c <= 0x2026) || c == 0x2039 || c == 0x203A || c == 0xAB || c == 0xBB;
}

struct Decoded {
  char32_t value = 0;
  size_t length = 0;  // characters that stood for it; 0: none
  uint8_t lead = 0;   // first byte
};

// The character whose UTF-8 bytes were read one by one from here on.
Decoded decoded_at(std::u32string_view text, size_t at) {
  std::array<char, kLongestSequence> bytes{};
  size_t count = 0;
  while (count < kLongestSequence && at + count < text.size()) {
    const std::optional<uint8_t> byte = byte_of(text[at + count]);
    if (!byte) break;
    bytes[count++] = static_cast<char>(*byte);
  }
  const auto lead = static_cast<uint8_t>(bytes[0]);
  if (count < 2 || lead < 0xC2) return {};
  const CodePoint c = decode_utf8(bytes.data(), bytes.data() + count);
  if (c.length < 2 || c.value == kReplacementCharacter) return {};
  const auto length = static_cast<size_t>(c.length);
  if (length == 2 && (lead == 0xC4 || lead == 0xC5) && is_quote_or_dash(text[at + 1])) return {};
  return {c.value, length, lead};
}

// True if the sequence is sufficient evidence by itself.
bool is_certain(const Decoded& found) { return found.length > 2 || found.lead <= 0xC5; }
bool is_greek_or_cyrillic(const Decoded& found) {
  return found.length == 2 &&
         (found.lead == 0xCE || found.lead == 0xCF || found.lead == 0xD0 || found.lead == 0xD1);
}

std::u32string decoded_again(std::u32string_view text) {
  std::u32string out;
  bool was_alphabet = false;  // a Greek or Cyrillic sequence ended here
  for (size_t i = 0; i < text.size();) {
    const Decoded found = decoded_at(text, i);
    const bool is_alphabet = is_greek_or_cyrillic(found);
    const bool counts =
        found.length > 0 &&
        (is_certain(found) || (is_alphabet && (was_alphabet || is_greek_or_cyrillic(decoded_at(
                                                                   text, i + found.length)))));
    out += counts ? found.value : text[i];
    i += counts ? found.length : 1;
    was_alphabet = counts && is_alphabet;
  }
  return out;
}

std::u32string without_terminal_codes(std::u32string_view text) {
  std::u32string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == 0x1B && i + 1 < text.size() && text[i + 1] == U'[') {
      size_t end = i + 2;
      while (end < text.size() && ((text[end] >= U'0' && text[end] <= U'9') || text[end] == U';')) {
        ++end;
      }
      if (end < text.size() && text[end] == U'm') {
        i = end;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

bool is_unwanted_control(char32_t c) {
  const bool is_white = c == U'\t' || c == U'\n' || c == U'\f';
  return (c < 0x20 && !is_white) || c == 0x7F || c == 0xFEFF || (c >= 0x206A && c <= 0x206F) ||
         (c >= 0xFFF9 && c <= 0xFFFC);
}

// The rules from ligatures to controls, which look at one character.
void append_plain(std::u32string& out, char32_t c) {
  constexpr std::array<std::u32string_view, 7> kLigatures = {U"ff",  U"fi", U"fl", U"ffi",
                                                             U"ffl", U"st", U"st"};
  if (c >= 0xFB00 && c <= 0xFB06) {
    out += kLigatures[c - 0xFB00];
  } else if (c >= 0xFF01 && c <= 0xFF5E) {
    out += c - 0xFF01 + U'!';
  } else if (c == 0x3000) {
    out += U' ';
  } else if (c >= 0x2018 && c <= 0x201B) {
    out += U'\'';
  } else if (c >= 0x201C && c <= 0x201F) {
    out += U'"';
  } else if (c == U'\r' || c == 0x85 || c == 0x2028 || c == 0x2029) {
    out += U'\n';
  } else if (!is_unwanted_control(c)) {
    out += c;
  }
}

}  // namespace

std::u32string repaired(std::u32string_view text) {
  std::u32string decoded = without_terminal_codes(text);
  for (int i = 0; i < kMaxDecodings; ++i) decoded = decoded_again(decoded);
  std::u32string plain;
  for (size_t i = 0; i < decoded.size(); ++i) {
    const bool is_half = decoded[i] == U'\r' && i + 1 < decoded.size() && decoded[i + 1] == U'\n';
    if (!is_half) append_plain(plain, decoded[i]);
  }
  return normalized(plain, NormalForm::kNfc);
}

std::string repaired(std::string_view utf8) { return to_utf8(repaired(code_points(utf8))); }

}  // namespace megatron::corpus
