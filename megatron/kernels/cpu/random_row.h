#pragma once

#include <cstdint>

#include "megatron/device/random.h"

namespace megatron::kernels::cpu {

// words[k - first] for columns k in [first, first + n) of one row: word k % 4 of
// philox<rounds>({k / 4, row, sample low, sample high}, key).
// REQUIRES: first % 4 == 0, and room for n rounded up to a multiple of 64 words; rounds 7 or 10.
void random_row(uint32_t* words, uint64_t key, int64_t row, int64_t sample, int64_t first,
                int64_t n, int rounds = 10);

}  // namespace megatron::kernels::cpu
