#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace megatron {

// The printable code point that represents each byte in the files of byte-level BPE: bytes
// 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF are themselves, the other 68 are U+0100 and up, in order.
std::array<char32_t, 256> byte_map();
// The 256 bytes in the order of their ids in GPT-2's vocabulary: the printable ones first.
std::array<uint8_t, 256> byte_order();

// Bytes as printable UTF-8, and back; nothing if a character represents no byte.
std::string printable_from_bytes(std::string_view bytes);
std::optional<std::string> bytes_from_printable(std::string_view printable);

}  // namespace megatron
