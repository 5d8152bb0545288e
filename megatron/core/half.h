#pragma once

#include <bit>
#include <cstdint>

namespace megatron {

// The upper half of an IEEE fp32: 8 exponent bits, 7 mantissa bits. Storage only; compute in float.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  // Rounds to nearest even; NaN stays NaN.
  BFloat16(float value) {  // NOLINT(google-explicit-constructor): a storage type
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<uint16_t>(is_nan ? (u >> 16) | 0x40u : rounded);
  }
  operator float() const {  // NOLINT(google-explicit-constructor)
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

// IEEE binary16: 5 exponent bits, 10 mantissa bits. Storage only; compute in float.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  // Rounds to nearest even; overflows to infinity; NaN stays NaN.
  Float16(float value) : bits(from_float(value)) {}  // NOLINT(google-explicit-constructor)
  operator float() const { return to_float(bits); }  // NOLINT(google-explicit-constructor)

 private:
#if defined(__F16C__)
  // The compilers' builtins: <immintrin.h> would cost every source that includes this a second.
  using Halves = short __attribute__((vector_size(16)));
  using Floats = float __attribute__((vector_size(16)));
  static uint16_t from_float(float value) {
    constexpr int kToNearestEven = 0;
    return static_cast<uint16_t>(__builtin_ia32_vcvtps2ph(Floats{value}, kToNearestEven)[0]);
  }
  static float to_float(uint16_t h) {
    return __builtin_ia32_vcvtph2ps(Halves{static_cast<short>(h)})[0];
  }
#else
  static uint16_t from_float(float value);
  static float to_float(uint16_t h);
#endif
};

#if !defined(__F16C__)
inline uint16_t Float16::from_float(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal: let the FPU round at the weight of the last bit
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

inline float Float16::to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  if (rest < 0x400u) {
    const float tiny = static_cast<float>(rest) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(tiny));
  }
  return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000u));
}
#endif

}  // namespace megatron
