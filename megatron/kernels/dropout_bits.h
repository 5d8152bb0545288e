#pragma once

#include <cstdint>

#include "megatron/device/host_device.h"

// The random bits of dropout, in hidden states (device/random.h) and in attention
// (attention_dropout.h): 16 bits of philox<kDropoutRounds>() per element, which is kept if they are
// below DropoutKey::keep_threshold(). Seven rounds pass the tests of Salmon et al. 2011, table 2;
// the probability is rounded to 1 / 65536. On a GPU a call takes 28 instructions.
namespace megatron::kernels {

inline constexpr int kDropoutRounds = 7;
inline constexpr int kDropoutElements = 8;  // elements per call

// True if the element of a word's lower or upper half is kept. high_threshold: the threshold *
// 2^16.
MG_HOST_DEVICE inline bool is_half_kept(uint32_t word, bool is_upper, uint32_t high_threshold) {
  return (is_upper ? word : word << 16) < high_threshold;
}

}  // namespace megatron::kernels
