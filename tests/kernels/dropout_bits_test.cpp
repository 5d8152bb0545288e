#include "megatron/kernels/dropout_bits.h"

#include <gtest/gtest.h>

namespace megatron::kernels {
namespace {

TEST(DropoutBits, AHalfIsKeptBelowTheThreshold) {
  for (const uint32_t threshold : {0u, 1u, 0x7FFFu, 0x8000u, 58'982u, 0xFFFFu}) {
    for (const uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 58'981u, 58'982u, 0xFFFEu, 0xFFFFu}) {
      for (const uint32_t upper : {0u, 0x7FFFu, 0x8000u, 58'981u, 58'982u, 0xFFFFu}) {
        const uint32_t word = upper << 16 | lower;
        EXPECT_EQ(is_half_kept(word, false, threshold << 16), lower < threshold) << word;
        EXPECT_EQ(is_half_kept(word, true, threshold << 16), upper < threshold) << word;
      }
    }
  }
}

}  // namespace
}  // namespace megatron::kernels
