#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

// The two 8-bit floating-point types of Micikevicius et al. 2022 (arXiv:2209.05433). Storage only:
// elements of an FP8 tensor are scaled, and the scale is stored elsewhere.
namespace megatron {

// 1 sign bit, 7 - kMantissa exponent bits and kMantissa mantissa bits. kLargest is the code of the
// largest finite number.
template <int kMantissa, int kBias, uint32_t kLargest>
struct Float8 {
  // NaN has the code kNan, with either sign. Larger codes than kLargest that are not NaN are
  // infinite; only E5M2 has one, and rounding never makes it.
  static constexpr uint32_t kNan = 0x7f;

  uint8_t bits = 0;

  Float8() = default;
  // Rounds to nearest even; saturates at the largest finite number; NaN stays NaN.
  Float8(float value) {  // NOLINT(google-explicit-constructor): a storage type
    const uint32_t u = std::bit_cast<uint32_t>(value);
    bits = static_cast<uint8_t>((u >> 24 & 0x80u) | code_of(u & 0x7fffffffu));
  }
  operator float() const {  // NOLINT(google-explicit-constructor)
    const uint32_t sign = (bits & 0x80u) << 24;
    const uint32_t code = bits & 0x7fu;
    uint32_t magnitude = 0;
    if (code <= kLargest) {
      // The fp32 number of the same digits has an exponent that is too small by the difference of
      // the biases.
      const float scaled = std::bit_cast<float>(code << (23 - kMantissa));
      magnitude = std::bit_cast<uint32_t>(scaled * std::bit_cast<float>(exponent(127 - kBias)));
    } else {
      magnitude = code == kLargest + 1 && code != kNan ? 0x7f800000u : 0x7fc00000u;
    }
    return std::bit_cast<float>(sign | magnitude);
  }
  // The largest finite number.
  static float largest() {
    Float8 value;
    value.bits = kLargest;
    return value;
  }

 private:
  // 2^power as the bits of an fp32 number.
  static constexpr uint32_t exponent(int power) { return static_cast<uint32_t>(127 + power) << 23; }

  // The code of a number without its sign, given as the bits of an fp32 number.
  static uint32_t code_of(uint32_t magnitude) {
    constexpr int kShift = 23 - kMantissa;
    if (magnitude > 0x7f800000u) return kNan;
    if (magnitude < exponent(1 - kBias)) {
      // Subnormal: adding this power of two rounds at the weight of the last bit.
      constexpr uint32_t kAnchor = exponent(24 - kBias - kMantissa);
      const float rounded = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kAnchor);
      return std::bit_cast<uint32_t>(rounded) - kAnchor;
    }
    const uint32_t odd = magnitude >> kShift & 1u;
    const uint32_t rounded = (magnitude + (1u << (kShift - 1)) - 1 + odd) >> kShift;
    return std::min(rounded - (static_cast<uint32_t>(127 - kBias) << kMantissa), kLargest);
  }
};

// Up to 448, smallest 2^-9, without infinity.
using Float8E4M3 = Float8<3, 7, 0x7e>;
// Up to 57344, smallest 2^-16.
using Float8E5M2 = Float8<2, 15, 0x7b>;

}  // namespace megatron
