#include "megatron/kernels/cpu/random_row.h"

namespace megatron::kernels::cpu {

void random_row(uint32_t* words, uint64_t key, int64_t row, int64_t sample, int64_t first,
                int64_t n) {
  constexpr int kLanes = 16;
  const auto row_word = static_cast<uint32_t>(row);
  const auto sample_low = static_cast<uint32_t>(sample);
  const auto sample_high = static_cast<uint32_t>(static_cast<uint64_t>(sample) >> 32);

  for (int64_t at = 0; at < n; at += 4 * kLanes) {
    const auto group = static_cast<uint32_t>((first + at) / 4);
    uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
#pragma omp simd
    for (int lane = 0; lane < kLanes; ++lane) {
      c0[lane] = group + static_cast<uint32_t>(lane);
      c1[lane] = row_word;
      c2[lane] = sample_low;
      c3[lane] = sample_high;
    }
    auto k0 = static_cast<uint32_t>(key);
    auto k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {  // as philox() in device/philox.h
#pragma omp simd
      for (int lane = 0; lane < kLanes; ++lane) {
        const uint64_t p0 = uint64_t{0xD2511F53u} * c0[lane];
        const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[lane];
        c0[lane] = static_cast<uint32_t>(p1 >> 32) ^ c1[lane] ^ k0;
        c1[lane] = static_cast<uint32_t>(p1);
        c2[lane] = static_cast<uint32_t>(p0 >> 32) ^ c3[lane] ^ k1;
        c3[lane] = static_cast<uint32_t>(p0);
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
#pragma omp simd
    for (int lane = 0; lane < kLanes; ++lane) {
      words[at + 4 * lane + 0] = c0[lane];
      words[at + 4 * lane + 1] = c1[lane];
      words[at + 4 * lane + 2] = c2[lane];
      words[at + 4 * lane + 3] = c3[lane];
    }
  }
}

}  // namespace megatron::kernels::cpu
