#pragma once

#include <array>
#include <cstdint>

#include "megatron/device/host_device.h"

namespace megatron {

// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): four random
// words from a 128-bit counter and a 64-bit key. Stateless, so any thread or device can compute any
// element, and a replay needs nothing but the key and the counter.
MG_HOST_DEVICE inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                                     uint64_t key) {
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// A 64-bit key for a named use of randomness: equal names and seeds give equal keys everywhere.
MG_HOST_DEVICE constexpr uint64_t mixed_key(uint64_t seed, uint64_t use) {
  uint64_t z = seed + 0x9E3779B97F4A7C15u * (use + 1);  // splitmix64
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// In (0, 1), never an end: a logarithm is finite, a bound of 1 is not reached.
MG_HOST_DEVICE inline float unit_interval(uint32_t word) {
  return (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
}

}  // namespace megatron
