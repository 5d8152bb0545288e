#include "megatron/parallel/context/head_sums.h"

#include <gtest/gtest.h>

#include <vector>

#include "megatron/parallel/context/chunks.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

constexpr int64_t kLength = 3;  // of a chunk
constexpr int64_t kHeads = 4;
constexpr int64_t kHeadSize = 2;

// Adds a number to all elements of a region, in the memory that the sums give.
void add(HeadSums& sums, const HeadsRegion& region, float value) {
  const kernels::HeadsView room = sums.room(region);
  for (int64_t i = 0; i < room.s; ++i) {
    for (int64_t batch = 0; batch < room.b; ++batch) {
      for (int64_t head = 0; head < room.heads; ++head) {
        auto* const at =
            static_cast<BFloat16*>(room.data) + i * room.stride_s + room.offset(batch, head);
        for (int64_t c = 0; c < room.d; ++c) at[c] = BFloat16(value);
      }
    }
  }
  sums.add(region, room);
}

class HeadSumsTest : public testing::TestWithParam<int64_t> {  // samples
 protected:
  // The element of the first channel of a token, of the first or the last sample and head.
  double at(int64_t token, bool is_last) const {
    const int64_t row = out_.numel() / (2 * kLength);
    return element(out_, token * row + (is_last ? row - 1 : 0));
  }

  int64_t batch_ = GetParam();
  Tensor out_ = Tensor({2 * kLength, batch_, kHeads* kHeadSize}, DType::kBFloat16, Stream{});
};

// As in the backward pass of a ring: half of the own block, the other blocks, the other half.
TEST_P(HeadSumsTest, SumsRegionsInAnyOrder) {
  for (const bool in_fp32 : {false, true}) {
    HeadSums sums(kernels::heads_of(out_.view(), kHeads), kHeads, in_fp32, Stream{});
    add(sums, {.half = 0, .num_halves = 1}, 1);
    add(sums, {.chunk = 1, .num_chunks = 1}, 10);
    add(sums, {}, 100);
    add(sums, {.half = 1, .num_halves = 1}, 3);
    sums.finish();
    EXPECT_EQ(at(0, false), 101);
    EXPECT_EQ(at(kLength, false), 111);
    EXPECT_EQ(at(0, true), 103);
    EXPECT_EQ(at(2 * kLength - 1, true), 113);
  }
}

// The first term of a region is written to its place, also if a term of more has come before.
TEST_P(HeadSumsTest, FirstTermsAreInPlace) {
  const kernels::HeadsView out = kernels::heads_of(out_.view(), kHeads);
  for (const bool in_fp32 : {false, true}) {
    HeadSums sums(out, kHeads, in_fp32, Stream{});
    const HeadsRegion first{.half = 0, .num_halves = 1};
    const HeadsRegion second{.half = 1, .num_halves = 1};
    EXPECT_EQ(sums.room(first).data, out.data);
    add(sums, first, 1);
    EXPECT_NE(sums.room({}).data, out.data);
    add(sums, {}, 2);
    EXPECT_EQ(sums.room(second).data, half_of(out, 1, kHeads).data);
    add(sums, second, 4);
    sums.finish();
    EXPECT_EQ(at(0, false), 3);
    EXPECT_EQ(at(0, true), 6);
  }
}

// 1 + 2^-9 is 1 in bf16, and so is 1 + 2^-9 + 2^-9 if each sum is rounded.
TEST_P(HeadSumsTest, SumsInFp32AreRoundedOnce) {
  for (const bool in_fp32 : {false, true}) {
    HeadSums sums(kernels::heads_of(out_.view(), kHeads), kHeads, in_fp32, Stream{});
    add(sums, {}, 1);
    for (int i = 0; i < 4; ++i) add(sums, {}, 1.0f / 512);
    sums.finish();
    EXPECT_EQ(at(0, false), in_fp32 ? 1 + 4.0 / 512 : 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Samples, HeadSumsTest, testing::Values(1, 3));

}  // namespace
}  // namespace megatron
