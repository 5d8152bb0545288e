#include "megatron/tokenizers/byte_map.h"

#include "megatron/tokenizers/unicode.h"

namespace megatron {
namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> make_byte_map() {
  std::array<char32_t, 256> map{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    map[byte] = stands_for_itself(byte) ? byte : next++;
  }
  return map;
}

constexpr std::array<char32_t, 256> kByteMap = make_byte_map();
constexpr char32_t kMapEnd = 0x144;

// The byte of each mapped code point; -1: none.
constexpr std::array<int16_t, kMapEnd> make_inverse() {
  std::array<int16_t, kMapEnd> inverse{};
  for (int16_t& byte : inverse) byte = -1;
  for (unsigned byte = 0; byte < 256; ++byte) inverse[kByteMap[byte]] = static_cast<int16_t>(byte);
  return inverse;
}

constexpr std::array<int16_t, kMapEnd> kInverse = make_inverse();

}  // namespace

std::array<char32_t, 256> byte_map() { return kByteMap; }

std::array<uint8_t, 256> byte_order() {
  std::array<uint8_t, 256> order{};
  size_t count = 0;
  for (const bool itself : {true, false}) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (stands_for_itself(byte) == itself) order[count++] = static_cast<uint8_t>(byte);
    }
  }
  return order;
}

std::string printable_from_bytes(std::string_view bytes) {
  std::string printable;
  printable.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_utf8(printable, kByteMap[static_cast<uint8_t>(byte)]);
  return printable;
}

std::optional<std::string> bytes_from_printable(std::string_view printable) {
  std::string bytes;
  bytes.reserve(printable.size());
  const char* const end = printable.data() + printable.size();
  for (const char* p = printable.data(); p < end;) {
    const CodePoint c = decode_utf8(p, end);
    if (c.value >= kMapEnd || kInverse[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(kInverse[c.value]);
    p += c.length;
  }
  return bytes;
}

}  // namespace megatron
