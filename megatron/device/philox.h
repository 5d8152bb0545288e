#pragma once

#include <array>
#include <cstdint>

#include "megatron/device/host_device.h"

namespace megatron {

// The keys of philox()'s rounds, computed once for many calls that share a key.
template <int kRounds>
struct PhiloxKeys {
  uint32_t words[kRounds][2];

  MG_HOST_DEVICE explicit constexpr PhiloxKeys(uint64_t key) : words() {
    auto k0 = static_cast<uint32_t>(key);
    auto k1 = static_cast<uint32_t>(key >> 32);
    for (auto& round : words) {
      round[0] = k0;
      round[1] = k1;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }
};

// Philox4x32 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") of ten rounds, the
// usual number, or fewer: four random words from a 128-bit counter and a 64-bit key. Stateless: any
// thread or device can compute any element, and a replay needs only the key and the counter.
template <int kRounds>
MG_HOST_DEVICE inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                                     const PhiloxKeys<kRounds>& keys) {
  for (const auto& key : keys.words) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
  }
  return counter;
}
template <int kRounds = 10>
MG_HOST_DEVICE inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                                     uint64_t key) {
  return philox(counter, PhiloxKeys<kRounds>(key));
}

// A 64-bit key for one use of randomness: equal seeds and uses give equal keys everywhere.
MG_HOST_DEVICE constexpr uint64_t mixed_key(uint64_t seed, uint64_t use) {
  uint64_t z = seed + 0x9E3779B97F4A7C15u * (use + 1);  // splitmix64
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// A number in (0, 1), never 0 or 1: its logarithm is finite, and a bound of 1 is not reached.
MG_HOST_DEVICE inline float unit_interval(uint32_t word) {
  return (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
}

}  // namespace megatron
