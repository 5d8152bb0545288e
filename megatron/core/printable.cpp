#include "megatron/core/printable.h"

#include <fmt/format.h>

#include <cstdint>

namespace megatron {
namespace {

uint8_t byte_at(std::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

// REQUIRES: `length` bytes of UTF-8 at `at`.
uint32_t code_point_at(std::string_view text, size_t at, size_t length) {
  if (length == 1) return byte_at(text, at);
  uint32_t value = byte_at(text, at) & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) value = value << 6 | (byte_at(text, at + i) & 0x3Fu);
  return value;
}

bool must_be_escaped(uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

// Appends the printable form of the character at `at`; returns its bytes in the text.
size_t append_printable(std::string_view text, size_t at, std::string& out) {
  const size_t length = utf8_length(text, at);
  if (length == 0) {
    out += fmt::format("\\x{:02x}", byte_at(text, at));
    return 1;
  }
  const uint32_t c = code_point_at(text, at, length);
  if (must_be_escaped(c)) {
    out += fmt::format("\\u{:04x}", c);
  } else {
    out += text.substr(at, length);
  }
  return length;
}

}  // namespace

size_t utf8_length(std::string_view text, size_t at) {
  const uint8_t first = byte_at(text, at);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first < 0xE0   ? 2
                        : first >= 0xE0 && first < 0xF0 ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  if (length == 0 || text.size() - at < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte_at(text, at + i) & 0xC0) != 0x80) return 0;
  }
  const uint32_t c = code_point_at(text, at, length);
  const bool is_surrogate = c >= 0xD800 && c <= 0xDFFF;
  const bool is_too_long = (length == 3 && c < 0x800) || (length == 4 && c < 0x10000);
  return is_surrogate || is_too_long || c > 0x10FFFF ? 0 : length;
}

size_t utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = utf8_length(text, at);
    if (length == 0) break;
    at += length;
  }
  return at;
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) at += append_printable(text, at, out);
  return out;
}

std::string shortened(std::string_view text, size_t most) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    std::string next;
    const size_t length = append_printable(text, at, next);
    if (out.size() + next.size() > most) return out + fmt::format("... ({} bytes)", text.size());
    out += next;
    at += length;
  }
  return out;
}

}  // namespace megatron
