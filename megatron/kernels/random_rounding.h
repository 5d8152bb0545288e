#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "megatron/core/half.h"
#include "megatron/device/philox.h"

// Stochastic rounding of fp32 main parameters to bf16 (Gupta et al. 2015, arXiv:1502.02551, sec.
// 3): the 16 bits that bf16 lacks and 16 random bits are added, and a carry rounds the magnitude
// up. The mean of the results is the number itself; numbers of bf16 stay.
//
// Element e of a parameter of the whole model has, in update number `step`, the upper half of word
// e % 4 of philox<7>({e / 4 low, e / 4 high, step, 0}, key), where the key is of the seed and the
// parameter's name. So a number is rounded alike by a resumed run and by every layout of ranks.
namespace megatron::kernels {

// NaN stays NaN; infinity stays infinity.   random: 16 bits count
MG_HOST_DEVICE inline BFloat16 rounded_at_random(uint32_t w, uint32_t random) {
  const bool is_nan = (w & 0x7fffffffu) > 0x7f800000u;
  const uint32_t carried = w + (random & 0xffffu);
  BFloat16 y;
  y.bits = static_cast<uint16_t>(is_nan ? (w >> 16) | 0x40u : carried >> 16);
  return y;
}

// The place of adjacent elements of a flat buffer in a parameter of the whole model, as stored in a
// table of int64. Elements [first, first + width), counted in the buffer, are elements
// [origin, origin + width) of the parameter; the next ones follow at intervals of `stride`.
struct RoundingPlace {
  int64_t key;
  int64_t first;
  int64_t origin;
  int64_t width;
  int64_t stride;

  // The element of the parameter at position `at` of the buffer.
  MG_HOST_DEVICE int64_t element(int64_t at) const {
    const int64_t i = at - first;
    if (i < width) return origin + i;
    return origin + i / width * stride + i % width;
  }
};
inline constexpr int64_t kPlaceNumbers = sizeof(RoundingPlace) / sizeof(int64_t);

// Draws the random bits of elements of one parameter; four neighbours share a call of philox().
class RoundingBits {
 public:
  MG_HOST_DEVICE RoundingBits(int64_t key, uint32_t step)
      : key_(static_cast<uint64_t>(key)), step_(step) {}

  MG_HOST_DEVICE uint32_t of(int64_t element) {
    const auto four = static_cast<uint64_t>(element) / 4;
    if (four != four_) {
      four_ = four;
      words_ = philox<7>(
          {static_cast<uint32_t>(four), static_cast<uint32_t>(four >> 32), step_, 0u}, key_);
    }
    const uint32_t low = (element & 1) != 0 ? words_[1] : words_[0];
    const uint32_t high = (element & 1) != 0 ? words_[3] : words_[2];
    return ((element & 2) != 0 ? high : low) >> 16;
  }

 private:
  uint64_t key_;
  uint32_t step_;
  uint64_t four_ = ~uint64_t{0};  // of no element
  std::array<uint32_t, 4> words_ = {};
};

}  // namespace megatron::kernels
