#include "megatron/formats/crc32c.h"

#include <array>
#include <cstring>

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#endif

namespace megatron {
namespace {

// Of 16 bytes at a time: a checksum waits for the one before, table look-ups do not.
constexpr size_t kSlice = 16;
using Tables = std::array<std::array<uint32_t, 256>, kSlice>;

// tables[k][b] is the checksum of byte b followed by k zero bytes (slicing-by-16).
constexpr Tables make_tables(uint32_t reflected_polynomial) {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) * reflected_polynomial);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xffu];
    }
  }
  return tables;
}

constexpr Tables kCastagnoli = make_tables(0x82F63B78u);
constexpr Tables kZip = make_tables(0xEDB88320u);

uint64_t eight_bytes(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

uint32_t by_table(const Tables& tables, std::span<const std::byte> bytes, uint32_t crc) {
  crc = ~crc;
  while (bytes.size() >= kSlice) {
    const uint64_t low = eight_bytes(bytes.data()) ^ crc;
    const uint64_t high = eight_bytes(bytes.data() + 8);
    crc = 0;
    for (size_t k = 0; k < 8; ++k) {
      crc ^= tables[kSlice - 1 - k][(low >> (8 * k)) & 0xffu];
      crc ^= tables[kSlice / 2 - 1 - k][(high >> (8 * k)) & 0xffu];
    }
    bytes = bytes.subspan(kSlice);
  }
  for (const std::byte byte : bytes) {
    crc = (crc >> 8) ^ tables[0][(crc ^ static_cast<uint32_t>(byte)) & 0xffu];
  }
  return ~crc;
}

}  // namespace

uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t crc) {
  return by_table(kCastagnoli, bytes, crc);
}

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  return by_table(kZip, bytes, crc);
}

#if defined(__SSE4_2__)
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  uint64_t state = ~crc;
  while (bytes.size() >= 8) {
    state = _mm_crc32_u64(state, eight_bytes(bytes.data()));
    bytes = bytes.subspan(8);
  }
  auto rest = static_cast<uint32_t>(state);
  for (const std::byte byte : bytes) rest = _mm_crc32_u8(rest, static_cast<uint8_t>(byte));
  return ~rest;
}
#else
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  return crc32c_by_table(bytes, crc);
}
#endif

}  // namespace megatron
