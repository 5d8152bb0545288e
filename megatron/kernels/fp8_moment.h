#pragma once

#include <bit>
#include <cstdint>

#include "megatron/device/host_device.h"

// Adam's moments in fp8. Element x, which is m or sqrt(v), has the E4M3 code (core/float8.h) of
// 2^k x. All elements of a block of 64 neighbours share k: the largest magnitude of the block is in
// (224, 448] after scaling. k is stored as the byte k + 127. So a moment takes 65/64 bytes an
// element. Parameters and the shares of ranks begin at multiples of 64 elements: a block belongs
// to one of each, however many data-parallel ranks there are.
//
// Compat: TransformerEngine has one fp32 scale for a tensor, codes of v itself, and rounds to
// nearest. A step changes v by one part in 1 / (1 - beta2), which is far below half of the last
// place: v would stay where it is. Here updates round up or down at random, such that the mean is
// the number itself. The random bits are a hash of the block's key, which names its place in its
// parameter, of the element's place in the block, and of the count of updates: a resumed run draws
// the same, however many data-parallel ranks it has. Codes of numbers that were stored before are
// those numbers: decoding and rounding again changes none.
//
// sqrt(v) is never rounded to 0, which would divide by adam_eps alone.
namespace megatron::kernels {

inline constexpr int64_t kMomentBlock = 64;
inline constexpr uint32_t kRoundToNearest = 0x80000000u;  // instead of random bits

MG_HOST_DEVICE inline float float_of_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}
MG_HOST_DEVICE inline uint32_t bits_of_float(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}

// k + 127 for the largest magnitude of a block.
MG_HOST_DEVICE inline uint8_t block_exponent(float largest) {
  const uint32_t bits = bits_of_float(largest);
  const auto power = static_cast<int>(bits >> 23) - 127;  // largest = f 2^power, f in [1, 2)
  const int k = ((bits & 0x7fffffu) > 0x600000u ? 7 : 8) - power;  // f above 1.75
  const int at_most = k < 120 ? k : 120;
  return static_cast<uint8_t>((at_most > -120 ? at_most : -120) + 127);
}
MG_HOST_DEVICE inline float scale_of(uint8_t exponent) {
  return float_of_bits(static_cast<uint32_t>(exponent) << 23);
}
// 2^-k; of the byte 0, with which a moment of zeros begins, a finite number.
MG_HOST_DEVICE inline float inverse_scale_of(uint8_t exponent) {
  return float_of_bits((254u - exponent) << 23);
}

// The E4M3 code of a number up to 448 in magnitude: the next code up if the part beyond the code
// below and random / 2^32 make 1.
MG_HOST_DEVICE inline uint8_t rounded_code(float scaled, uint32_t random) {
  const uint32_t bits = bits_of_float(scaled);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);  // NaN
  constexpr uint32_t kSmallestNormal = 121u << 23;                          // 2^-6
  if (magnitude >= kSmallestNormal) {
    const uint32_t code = ((magnitude + (random >> 12)) >> 20) - (120u << 3);
    return static_cast<uint8_t>(sign | code);
  }
  const uint32_t shift = 141u - (magnitude >> 23);  // in units of 2^-9
  if (shift > 31u) return static_cast<uint8_t>(sign);
  const uint32_t digits = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t code = (digits + (random >> (32u - shift))) >> shift;
  return static_cast<uint8_t>(sign | code);
}

MG_HOST_DEVICE inline float value_of_code(uint8_t code) {
  const uint32_t digits = code & 0x7fu;
  if (digits == 0x7fu) return float_of_bits(0x7fc00000u);
  const float magnitude = float_of_bits(digits << 20) * 0x1p120f;  // the same digits, rebiased
  return (code & 0x80u) != 0 ? -magnitude : magnitude;
}

// Random bits for the rounding of an element of a block in one update.
MG_HOST_DEVICE inline uint32_t rounding_bits(uint32_t key, uint32_t element, uint32_t seed) {
  uint32_t hash = key * 0x9e3779b1u ^ seed;
  for (int i = 0; i < 2; ++i) {
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    hash ^= hash >> 16;
    if (i == 0) hash += element * 0x27d4eb2fu;
  }
  return hash;
}

// The element of a block that stands for x, m or sqrt(v), and back.
MG_HOST_DEVICE inline uint8_t fp8_moment_code(float x, uint8_t exponent, bool is_root,
                                              uint32_t random) {
  const uint8_t code = rounded_code(x * scale_of(exponent), random);
  return is_root && code == 0 && x > 0.0f ? 1 : code;
}
MG_HOST_DEVICE inline float fp8_moment_value(uint8_t code, uint8_t exponent) {
  return value_of_code(code) * inverse_scale_of(exponent);
}

}  // namespace megatron::kernels
