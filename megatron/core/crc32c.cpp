#include "megatron/core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#endif
#if defined(__PCLMUL__)
#include <wmmintrin.h>
#endif

namespace megatron {
namespace {

// Bytes per step: checksums depend on each other, table look-ups do not.
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

// Continues from the state of the shift register, the checksum with all bits inverted.
uint32_t state_by_table(const Tables& tables, std::span<const std::byte> bytes, uint32_t crc) {
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
  return crc;
}

uint32_t by_table(const Tables& tables, std::span<const std::byte> bytes, uint32_t crc) {
  return ~state_by_table(tables, bytes, ~crc);
}

#if defined(__PCLMUL__)
// x^n modulo the polynomial of zip files, reflected, as a factor of a carry-less product.
constexpr uint64_t power_of_x(int n) {
  uint32_t power = 0x80000000u;
  for (int i = 0; i < n; ++i) power = (power >> 1) ^ ((power & 1u) * 0xEDB88320u);
  return uint64_t{power} << 1;
}

// Folds 128 bits of the message into the next 128 bits, `distance` bits later; the remainder modulo
// the polynomial does not change (Gopal et al. 2009, "Fast CRC Computation for Generic
// Polynomials Using PCLMULQDQ Instruction").
template <int distance>
__m128i folded(__m128i bits, __m128i next) {
  const __m128i powers = _mm_set_epi64x(static_cast<int64_t>(power_of_x(distance - 32)),
                                        static_cast<int64_t>(power_of_x(distance + 32)));
  return _mm_xor_si128(next, _mm_xor_si128(_mm_clmulepi64_si128(bits, powers, 0x00),
                                           _mm_clmulepi64_si128(bits, powers, 0x11)));
}

__m128i sixteen_bytes(const std::byte* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}
#endif

}  // namespace

uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t crc) {
  return by_table(kCastagnoli, bytes, crc);
}

uint32_t crc32_by_table(std::span<const std::byte> bytes, uint32_t crc) {
  return by_table(kZip, bytes, crc);
}

#if defined(__PCLMUL__)
uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  constexpr size_t kStep = 64;
  if (bytes.size() < kStep) return crc32_by_table(bytes, crc);
  // Four runs of 16 bytes at a time, so that products do not depend on each other.
  __m128i bits[4];
  for (size_t i = 0; i < 4; ++i) bits[i] = sixteen_bytes(bytes.data() + 16 * i);
  bits[0] = _mm_xor_si128(bits[0], _mm_cvtsi32_si128(static_cast<int>(~crc)));
  for (bytes = bytes.subspan(kStep); bytes.size() >= kStep; bytes = bytes.subspan(kStep)) {
    for (size_t i = 0; i < 4; ++i) {
      bits[i] = folded<512>(bits[i], sixteen_bytes(bytes.data() + 16 * i));
    }
  }
  for (size_t i = 1; i < 4; ++i) bits[i] = folded<128>(bits[i - 1], bits[i]);
  // The folded bits replace all earlier ones.
  std::array<std::byte, 16> rest;
  std::memcpy(rest.data(), &bits[3], sizeof(rest));
  return ~state_by_table(kZip, bytes, state_by_table(kZip, rest, 0));
}
#else
uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  return crc32_by_table(bytes, crc);
}
#endif

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
