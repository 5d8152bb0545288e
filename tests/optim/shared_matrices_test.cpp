#include "megatron/optim/shared_matrices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"

namespace megatron {
namespace {

using testing::ElementsAre;

TEST(SharedMatricesTest, PiecesAreTheSharesOfRanks) {
  const FlatSpan bucket = {100, 500};  // shares of 100
  const auto pieces = [&](int64_t begin, int64_t end) {
    std::vector<std::vector<int64_t>> all;
    for (const MatrixPiece& piece : pieces_of({begin, end}, bucket, 4)) {
      all.push_back({piece.rank, piece.span.begin, piece.span.end});
    }
    return all;
  };
  using Piece = std::vector<int64_t>;
  EXPECT_THAT(pieces(100, 200), ElementsAre(Piece{0, 0, 100}));
  EXPECT_THAT(pieces(150, 420), ElementsAre(Piece{0, 0, 50}, Piece{1, 50, 150}, Piece{2, 150, 250},
                                            Piece{3, 250, 270}));
  EXPECT_THAT(pieces(310, 330), ElementsAre(Piece{2, 0, 20}));
}

std::vector<SharedMatrix> with_costs(const std::vector<double>& costs) {
  std::vector<SharedMatrix> all;
  for (const double cost : costs) all.push_back({{}, cost});
  return all;
}

TEST(SharedMatricesTest, CostlyMatricesComeFirstAndRanksHaveAboutTheSame) {
  EXPECT_THAT(shared_rounds(with_costs({1, 2, 3}), 1),
              ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
  // 4 and 1 for each of two ranks; the third matrix of 1 is one more round of the first.
  EXPECT_THAT(shared_rounds(with_costs({1, 4, 1, 4, 1}), 2),
              ElementsAre(ElementsAre(1, 3), ElementsAre(0, 2), ElementsAre(4, kNoMatrix)));
  EXPECT_THAT(shared_rounds(with_costs({5}), 3), ElementsAre(ElementsAre(0, kNoMatrix, kNoMatrix)));
  EXPECT_TRUE(shared_rounds({}, 2).empty());
}

// Each matrix is worked on once, as a whole, wherever its pieces are.
TEST(SharedMatricesTest, WholeMatricesComeTogetherAndGoBack) {
  const std::vector<SharedMatrix> matrices = {
      {{0, 30}, 3}, {{32, 72}, 9}, {{72, 73}, 1}, {{80, 236}, 7}, {{236, 240}, 1}};
  const FlatSpan bucket = {0, 240};
  for (const int ranks : {1, 2, 3, 4}) {
    std::mutex mutex;
    std::multiset<size_t> worked;
    std::map<int64_t, float> results;  // by element of the buffer
    comm::run_ranks(ranks, [&](const comm::Group& world) {
      const SharedMatrices shared(matrices, bucket, world, Stream{});
      for (int step = 1; step <= 2; ++step) {
        shared.run(
            [&](size_t matrix, const FlatSpan& span, Tensor values) {
              for (int64_t i = 0; i < span.size(); ++i) {
                values.span<float>()[static_cast<size_t>(i)] =
                    static_cast<float>(matrices[matrix].span.begin + span.begin + i);
              }
            },
            [&](size_t matrix, Tensor values) {
              const std::lock_guard lock(mutex);
              if (step == 2) worked.insert(matrix);
              EXPECT_EQ(values.numel(), matrices[matrix].span.size());
              float sum = 0;  // of the whole matrix
              for (const float x : values.span<float>()) sum += x;
              for (float& x : values.span<float>()) x = 1000 * x + sum;
            },
            [&](size_t matrix, const FlatSpan& span, const Tensor& values) {
              const std::lock_guard lock(mutex);
              for (int64_t i = 0; i < span.size(); ++i) {
                const int64_t at = matrices[matrix].span.begin + span.begin + i;
                EXPECT_EQ(results.contains(at), step == 2);
                results[at] = values.span<float>()[static_cast<size_t>(i)];
              }
            });
        comm::barrier(world);
      }
    });
    EXPECT_THAT(worked, ElementsAre(0, 1, 2, 3, 4)) << ranks;
    int64_t elements = 0;
    for (const SharedMatrix& matrix : matrices) {
      const auto [begin, end] = matrix.span;
      elements += end - begin;
      const auto sum = static_cast<float>((begin + end - 1) * (end - begin) / 2);
      for (int64_t i = begin; i < end; ++i) {
        EXPECT_EQ(results.at(i), 1000 * static_cast<float>(i) + sum) << ranks << " " << i;
      }
    }
    EXPECT_EQ(static_cast<int64_t>(results.size()), elements);
  }
}

}  // namespace
}  // namespace megatron
