#include "megatron/tokenizers/base64.h"

#include <cstdint>

namespace megatron {
namespace {

// -1: not a digit.
int value_of(char digit) {
  if (digit >= 'A' && digit <= 'Z') return digit - 'A';
  if (digit >= 'a' && digit <= 'z') return digit - 'a' + 26;
  if (digit >= '0' && digit <= '9') return digit - '0' + 52;
  if (digit == '+') return 62;
  return digit == '/' ? 63 : -1;
}

}  // namespace

std::optional<std::string> bytes_from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  for (int i = 0; i < 2 && text.ends_with('='); ++i) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() * 3 / 4);
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char digit : text) {
    const int value = value_of(digit);
    if (value < 0) return std::nullopt;
    bits = (bits << 6) | static_cast<uint32_t>(value);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>((bits >> num_bits) & 0xFFu);
  }
  if (num_bits == 6) return std::nullopt;
  return bytes;
}

}  // namespace megatron
