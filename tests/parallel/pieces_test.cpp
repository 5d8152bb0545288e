#include "megatron/parallel/tensor/pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/parallel/tensor/mappings.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

TEST(WorthAPieceTest, PiecesOfAGpuHaveAThousandRows) {
  const Stream gpu{Device{DeviceType::kCuda, 0}};
  EXPECT_TRUE(worth_overlapping({128, 8, 64}, gpu));
  EXPECT_TRUE(worth_overlapping({1, 1024, 64}, gpu));
  EXPECT_FALSE(worth_overlapping({1023, 1, 64}, gpu));
  EXPECT_FALSE(worth_overlapping({0, 1, 64}, Stream{}));
  EXPECT_TRUE(worth_overlapping({1, 1, 64}, Stream{}));
}

// Parameter: tensor-parallel size.
class PiecesTest : public testing::TestWithParam<int> {};

TEST_P(PiecesTest, EveryRankIsGatheredOnceItsOwnFirst) {
  const Tensor all = random_normal({12, 2, 3}, {.seed = 1});
  const int64_t count = 12 / GetParam();
  comm::run_ranks(GetParam(), [&](const comm::Group& group) {
    GatheredPieces pieces(copied(all.slice(group.rank() * count, count)), group);
    std::vector<bool> is_used(12, false);
    bool is_first = true;
    pieces.for_each([&](int64_t first, const Tensor& stretch) {
      EXPECT_EQ(std::exchange(is_first, false), first == group.rank() * count);
      expect_identical(stretch, all.slice(first, stretch.size(0)));
      for (int64_t row = first; row < first + stretch.size(0); ++row) {
        EXPECT_FALSE(is_used[static_cast<size_t>(row)]);
        is_used[static_cast<size_t>(row)] = true;
      }
    });
    EXPECT_EQ(std::count(is_used.begin(), is_used.end(), true), 12);
    std::vector<int64_t> firsts;
    int64_t rows = 0;
    pieces.for_stretches([&](int64_t first, const Tensor& stretch) {
      firsts.push_back(first);
      rows += stretch.size(0);
      expect_identical(stretch, all.slice(first, stretch.size(0)));
    });
    EXPECT_EQ(firsts.front(), group.rank() * count);
    EXPECT_LE(firsts.size(), 3u);
    EXPECT_EQ(rows, 12);
  });
}

// In the order of ranks, in fp32, rounded once: the bits of a reduce-scatter.
TEST_P(PiecesTest, SumsAreThoseOfAReduceScatter) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    comm::run_ranks(GetParam(), [&](const comm::Group& group) {
      const Tensor mine =
          random_normal({12, 2, 3}, {.seed = static_cast<uint64_t>(group.rank()), .dtype = dtype});
      int64_t last = -1;
      const Tensor sum =
          summed_by_pieces(mine.shape(), dtype, Stream{}, group, [&](int64_t first, Tensor& rows) {
            last = first;
            copy_into(rows, mine.slice(first, rows.size(0)));
          });
      EXPECT_EQ(last, group.rank() * sum.size(0));
      expect_identical(sum, scattered_sum(mine, group));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(TensorParallelSizes, PiecesTest, testing::Values(2, 3, 4, 6, 12));

}  // namespace
}  // namespace megatron
