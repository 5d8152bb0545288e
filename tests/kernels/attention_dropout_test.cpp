#include "megatron/kernels/attention_dropout_parts.h"

#include <gtest/gtest.h>

namespace megatron::kernels {
namespace {

TEST(AttentionDropout, PartsMakeTheSameWords) {
  for (const uint64_t key : {uint64_t{1}, uint64_t{0x123456789abcdef}, ~uint64_t{0}}) {
    const PhiloxKeys<kDropoutRounds> keys(key);
    for (const int64_t sample : {int64_t{0}, int64_t{5}, int64_t{0x300000007}, int64_t{-1}}) {
      for (const uint32_t row : {0u, 1u, 991u, 0x80000001u, ~0u}) {
        const DropoutRow of_row = dropout_row_words(row, sample, keys);
        for (const uint32_t column : {0u, 7u, 4096u, 0xFEDCBA98u, ~0u}) {
          EXPECT_EQ(dropout_words(dropout_column_words(column, sample, keys), of_row, keys),
                    dropout_words(column, row, sample, keys))
              << key << " " << sample << " " << row << " " << column;
        }
      }
    }
  }
}

}  // namespace
}  // namespace megatron::kernels
