#include "megatron/ops/chunks.h"

#include "megatron/core/error.h"
#include "tests/ops/op_case.h"

namespace megatron {
namespace {

constexpr int64_t kBatch = 2;
constexpr int64_t kWidth = 3;

// Parameters: tokens of a sequence, tokens of a chunk.
class ChunksTest : public testing::TestWithParam<std::pair<int64_t, int64_t>> {
 protected:
  const int64_t s_ = GetParam().first;
  const int64_t m_ = GetParam().second;
  const int64_t l_ = (s_ + m_ - 1) / m_;

  // The token of a row of a chunk's column; -1 if it has none.
  int64_t token(int64_t chunk, int64_t row, ChunkRows rows) const {
    const int64_t end = s_ - (l_ - 1 - chunk) * m_;  // behind the chunk
    if (rows == ChunkRows::kReaders) return end - 1 + row < s_ ? end - 1 + row : -1;
    const int64_t begin = chunk == 0 ? 0 : end - m_;
    return begin + row < end ? begin + row : -1;
  }

  Tensor split(const Tensor& x, ChunkRows rows) const {
    Tensor y = zeros({m_, kBatch * l_, kWidth}, DType::kFloat32, Stream{});
    for (int64_t i = 0; i < y.numel(); ++i) {
      const int64_t column = i / kWidth % (kBatch * l_);
      const int64_t t = token(column % l_, i / kWidth / (kBatch * l_), rows);
      if (t < 0) continue;
      y.view().as<float>()[i] =
          x.view().as<float>()[(t * kBatch + column / l_) * kWidth + i % kWidth];
    }
    return y;
  }
  Tensor joined(const Tensor& y, ChunkRows rows) const {
    Tensor x = zeros({s_, kBatch, kWidth}, DType::kFloat32, Stream{});
    for (int64_t i = 0; i < y.numel(); ++i) {
      const int64_t column = i / kWidth % (kBatch * l_);
      const int64_t t = token(column % l_, i / kWidth / (kBatch * l_), rows);
      if (t < 0) continue;
      x.view().as<float>()[(t * kBatch + column / l_) * kWidth + i % kWidth] =
          y.view().as<float>()[i];
    }
    return x;
  }
};

TEST_P(ChunksTest, SplitAndJoin) {
  for (const ChunkRows rows : {ChunkRows::kOwn, ChunkRows::kReaders}) {
    check({.name = "split_chunks",
           .inputs = {random_normal({s_, kBatch, kWidth}, {.seed = 1})},
           .op = [&](const auto& in) { return split_chunks(in[0], m_, rows); },
           .expected = [&](const auto& in) { return split(in[0], rows); }});
    check({.name = "join_chunks",
           .inputs = {random_normal({m_, kBatch * l_, kWidth}, {.seed = 2})},
           .op = [&](const auto& in) { return join_chunks(in[0], s_, rows); },
           .expected = [&](const auto& in) { return joined(in[0], rows); }});
  }
}
// Whole chunks, a shorter first one, one chunk, chunks of one token, a chunk longer than the text.
INSTANTIATE_TEST_SUITE_P(Lengths, ChunksTest,
                         testing::Values(std::pair(12, 4), std::pair(9, 4), std::pair(11, 4),
                                         std::pair(4, 4), std::pair(3, 1), std::pair(2, 5)));

TEST(JoinNeighborsTest, RowsOfNeighboursAlternate) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kChunks = 4;
  for (const int64_t k : {1, 2, 3}) {
    check({.name = "join_neighbors",
           .inputs = {random_normal({kRows, kChunks * k, kWidth}, {.seed = 1})},
           .op = [&](const auto& in) { return join_neighbors(in[0], k); },
           .expected =
               [&](const auto& in) {
                 Tensor y({kRows * k, kChunks, kWidth}, DType::kFloat32, Stream{});
                 for (int64_t i = 0; i < y.numel(); ++i) {
                   const int64_t row = i / kWidth / kChunks;
                   const int64_t column = i / kWidth % kChunks * k + row % k;
                   y.view().as<float>()[i] =
                       in[0].view().template as<float>()[(row / k * kChunks * k + column) * kWidth +
                                                         i % kWidth];
                 }
                 return y;
               }});
  }
  EXPECT_THROW(join_neighbors(Variable(random_normal({2, 3, 4}, {.seed = 1})), 2), ShapeError);
}

}  // namespace
}  // namespace megatron
