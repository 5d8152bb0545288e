#pragma once

#include <cstdint>

#include "megatron/device/host_device.h"

// An fp32 main parameter w as the bf16 parameter p that the model has anyway, and the 16 bits that
// p lacks:
//
//   p = w rounded to nearest even,   bits(w) = 65536 bits(p) + r,   r in [-32768, 32767]
//
// As integers, the bits of numbers of one sign rise with their magnitude, so r is the distance from
// p in units of the last place of fp32. Both ways are exact but for one case: 65,537 numbers round
// to a p with an even last bit, one more than 16 bits can tell apart. The tie that rounds down to p
// (r = 32768) becomes its neighbour (r = 32767), which rounds to p, too. So p never differs from
// that of fp32 main parameters, and w in one of 131,072 numbers by its last place.
namespace megatron::kernels {

// The r that is nearest to w, given the bits of w and p. NaN stays NaN.
MG_HOST_DEVICE inline int16_t remainder_of(uint32_t w, uint16_t p) {
  const auto distance = static_cast<int32_t>(w - (static_cast<uint32_t>(p) << 16));
  const int32_t at_least = distance < -32768 ? -32768 : distance;
  return static_cast<int16_t>(at_least > 32767 ? 32767 : at_least);
}

// The bits of w.
MG_HOST_DEVICE inline uint32_t joined(uint16_t p, int16_t r) {
  return (static_cast<uint32_t>(p) << 16) + static_cast<uint32_t>(static_cast<int32_t>(r));
}

}  // namespace megatron::kernels
