#pragma once

#include <array>
#include <cstdint>

#include "megatron/device/philox.h"
#include "megatron/kernels/dropout_bits.h"

// The random bits of attention dropout. Take the query at position i of head h (of all heads of the
// model) and the key at position k, in sample j. Their bits (dropout_bits.h) are half 4 * (i / 8 %
// 2) + k / 8 % 4, counted from the lower half of word 0, of
//
//   philox<7>({k / 32 * 8 + k % 8, h * rows_of_head + i / 16 * 8 + i % 8, j low, j high}, key)
//
// A call serves two queries and four keys, eight apart. These belong to one lane in a product of
// tensor cores (m16n8k16), whether queries are its rows or its columns, so no kernel stores or
// exchanges random bits. A GPU draws them while the tensor cores are busy; a separate kernel that
// writes one bit an element would take as many instructions, with nothing to overlap them.
namespace megatron::kernels {

using AttentionWords = std::array<uint32_t, 4>;

inline constexpr int kDropoutQueries = 16;  // a head's number of rows is a multiple of it
inline constexpr int kDropoutKeys = 32;     // keys whose bits are in eight columns

// For a sequence of `length` positions.
MG_HOST_DEVICE inline int64_t dropout_rows_of_head(int64_t length) {
  return (length + kDropoutQueries - 1) / kDropoutQueries * 8;
}
// The second word of the counter, without the head's first row.
MG_HOST_DEVICE inline int64_t dropout_row(int64_t query) { return query / 16 * 8 + query % 8; }
// The first word of the counter.
MG_HOST_DEVICE inline int64_t dropout_column(int64_t key) { return key / 32 * 8 + key % 8; }

MG_HOST_DEVICE inline AttentionWords dropout_words(uint32_t column, uint32_t row, int64_t sample,
                                                   const PhiloxKeys<kDropoutRounds>& keys) {
  return philox({column, row, static_cast<uint32_t>(sample),
                 static_cast<uint32_t>(static_cast<uint64_t>(sample) >> 32)},
                keys);
}

// The bits of one query and key, from the words of their counter.
MG_HOST_DEVICE inline uint32_t dropout_bits(const AttentionWords& words, int64_t query,
                                            int64_t key) {
  const int64_t half = query / 8 % 2 * 4 + key / 8 % 4;
  const uint32_t even = half < 4 ? words[0] : words[2];  // keeps words in registers
  const uint32_t odd = half < 4 ? words[1] : words[3];
  return (half % 4 < 2 ? even : odd) >> (16 * (half % 2)) & 0xFFFFu;
}

}  // namespace megatron::kernels
