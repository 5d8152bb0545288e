#include "megatron/kernels/cpu/random_row.h"

#if defined(__AVX512F__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of the intrinsics' own "undefined" operands.
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

namespace megatron::kernels::cpu {
namespace {

struct Row {
  uint64_t key;
  uint32_t row;
  uint32_t sample_low;
  uint32_t sample_high;
  int rounds;
};

#if defined(__AVX512F__)

// Counters per call: two chains of eight, which hide the latency of multiplications.
constexpr int64_t kLanes = 16;

// philox() of device/philox.h for counters group .. group + 15. A 64-bit lane holds a 32-bit word
// in its lower half; the upper half is never read, so nothing clears it.
void philox_lanes(uint32_t* words, uint32_t group, const Row& row) {
  constexpr int kChains = 2;
  constexpr int kXor3 = 0x96;  // truth table of a ^ b ^ c
  const __m512i first = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i m0 = _mm512_set1_epi64(0xD2511F53);
  const __m512i m1 = _mm512_set1_epi64(0xCD9E8D57);
  __m512i c0[kChains], c1[kChains], c2[kChains], c3[kChains];
  for (int chain = 0; chain < kChains; ++chain) {
    c0[chain] = _mm512_add_epi64(first, _mm512_set1_epi64(static_cast<int64_t>(group) + 8 * chain));
    c1[chain] = _mm512_set1_epi64(row.row);
    c2[chain] = _mm512_set1_epi64(row.sample_low);
    c3[chain] = _mm512_set1_epi64(row.sample_high);
  }
  auto k0 = static_cast<uint32_t>(row.key);
  auto k1 = static_cast<uint32_t>(row.key >> 32);
  for (int round = 0; round < row.rounds; ++round) {
    const __m512i key0 = _mm512_set1_epi64(k0);
    const __m512i key1 = _mm512_set1_epi64(k1);
    for (int chain = 0; chain < kChains; ++chain) {
      const __m512i p0 = _mm512_mul_epu32(c0[chain], m0);
      const __m512i p1 = _mm512_mul_epu32(c2[chain], m1);
      c0[chain] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p1, 32), c1[chain], key0, kXor3);
      c2[chain] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(p0, 32), c3[chain], key1, kXor3);
      c1[chain] = p1;
      c3[chain] = p0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  constexpr __mmask16 kUpper = 0xAAAA;
  const __m512i low = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
  const __m512i high = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
  for (int chain = 0; chain < kChains; ++chain) {
    const __m512i w01 =
        _mm512_mask_blend_epi32(kUpper, c0[chain], _mm512_slli_epi64(c1[chain], 32));
    const __m512i w23 =
        _mm512_mask_blend_epi32(kUpper, c2[chain], _mm512_slli_epi64(c3[chain], 32));
    uint32_t* out = words + 32 * chain;
    _mm512_storeu_si512(out, _mm512_permutex2var_epi64(w01, low, w23));
    _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi64(w01, high, w23));
  }
}

#else

// Counters per call, in loops that compilers vectorise.
constexpr int64_t kLanes = 16;

void philox_lanes(uint32_t* words, uint32_t group, const Row& row) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    c0[lane] = group + static_cast<uint32_t>(lane);
    c1[lane] = row.row;
    c2[lane] = row.sample_low;
    c3[lane] = row.sample_high;
  }
  auto k0 = static_cast<uint32_t>(row.key);
  auto k1 = static_cast<uint32_t>(row.key >> 32);
  for (int round = 0; round < row.rounds; ++round) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
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
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    words[4 * lane] = c0[lane];
    words[4 * lane + 1] = c1[lane];
    words[4 * lane + 2] = c2[lane];
    words[4 * lane + 3] = c3[lane];
  }
}

#endif

}  // namespace

void random_row(uint32_t* words, uint64_t key, int64_t row, int64_t sample, int64_t first,
                int64_t n, int rounds) {
  const Row of_row{key, static_cast<uint32_t>(row), static_cast<uint32_t>(sample),
                   static_cast<uint32_t>(static_cast<uint64_t>(sample) >> 32), rounds};
  for (int64_t at = 0; at < n; at += 4 * kLanes) {
    philox_lanes(words + at, static_cast<uint32_t>((first + at) / 4), of_row);
  }
}

}  // namespace megatron::kernels::cpu
