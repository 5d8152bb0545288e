#pragma once

#include "megatron/kernels/attention_dropout.h"

// dropout_words() in parts, for kernels that call it for many rows and columns. The first three
// rounds mix a row, and a column, with nothing but the sample: each is done once for a row or a
// column instead of once for a pair, which leaves 9 of 14 multiplications and 11 of 14 other
// instructions.
namespace megatron::kernels {

// The contribution of a column to the third round, and of a row to the second and third.
struct alignas(16) DropoutColumn {
  uint32_t words[4];
};
struct alignas(8) DropoutRow {
  uint32_t words[2];
};

namespace dropout_parts {

inline constexpr int kRounds = 3;  // done once per row or column
// The multipliers of philox().
MG_HOST_DEVICE inline uint64_t first_product(uint32_t x) { return uint64_t{0xD2511F53u} * x; }
MG_HOST_DEVICE inline uint64_t second_product(uint32_t x) { return uint64_t{0xCD9E8D57u} * x; }
MG_HOST_DEVICE inline uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }
MG_HOST_DEVICE inline uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }

}  // namespace dropout_parts

MG_HOST_DEVICE inline DropoutColumn dropout_column_words(uint32_t column, int64_t sample,
                                                         const PhiloxKeys<kDropoutRounds>& keys) {
  using namespace dropout_parts;  // NOLINT(google-build-using-namespace)
  const auto bits = static_cast<uint64_t>(sample);
  const uint64_t one = first_product(column);
  const uint64_t two = second_product(high(one) ^ high(bits) ^ keys.words[0][1]);
  const uint64_t three =
      first_product(high(two) ^ low(second_product(low(bits))) ^ keys.words[1][0]);
  return {{low(one), low(two) ^ keys.words[2][0], high(three) ^ keys.words[2][1], low(three)}};
}

MG_HOST_DEVICE inline DropoutRow dropout_row_words(uint32_t row, int64_t sample,
                                                   const PhiloxKeys<kDropoutRounds>& keys) {
  using namespace dropout_parts;  // NOLINT(google-build-using-namespace)
  const auto bits = static_cast<uint64_t>(sample);
  const uint64_t two = first_product(high(second_product(low(bits))) ^ row ^ keys.words[0][0]);
  return {{high(two) ^ keys.words[1][1], low(two)}};
}

// The same as dropout_words() of the column, the row and the sample that the parts were made of.
MG_HOST_DEVICE inline AttentionWords dropout_words(const DropoutColumn& column,
                                                   const DropoutRow& row,
                                                   const PhiloxKeys<kDropoutRounds>& keys) {
  using namespace dropout_parts;  // NOLINT(google-build-using-namespace)
  const uint64_t three = second_product(row.words[0] ^ column.words[0]);
  AttentionWords counter = {high(three) ^ column.words[1], low(three),
                            column.words[2] ^ row.words[1], column.words[3]};
  for (int round = kRounds; round < kDropoutRounds; ++round) {
    const uint64_t first = first_product(counter[0]);
    const uint64_t second = second_product(counter[2]);
    counter = {high(second) ^ counter[1] ^ keys.words[round][0], low(second),
               high(first) ^ counter[3] ^ keys.words[round][1], low(first)};
  }
  return counter;
}

}  // namespace megatron::kernels
