#include "megatron/kernels/embedding.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels/cuda/twin.h"

namespace megatron {
namespace {

using EmbeddingCudaTest = CudaDtypeTest;

// Sums are made in the CPU's order: the same bits.
const Tolerance kEmbeddingExact{};

Tensor sorted_order(const Tensor& ids) {
  const auto all = ids.span<int64_t>();
  std::vector<int64_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return all[static_cast<size_t>(a)] < all[static_cast<size_t>(b)];
  });
  return tensor_of(order, {ids.numel()});
}

struct Case {
  int64_t batch;
  int64_t length;
  int64_t num_rows;   // of the table
  int64_t num_ids;    // of the vocabulary
  int64_t first_row;  // of the table, in the vocabulary
  int64_t cols;

  std::string str() const {
    return "ids " + Shape{batch, length}.str() + " table " + Shape{num_rows, cols}.str() +
           " from row " + std::to_string(first_row);
  }
};

// Also: one id for all, ids of other ranks on both sides, more columns than one block takes, ids
// with more rows than one sum and than those of a block.
const Case kCases[] = {{0, 4, 5, 5, 0, 8},
                       {1, 1, 1, 1, 0, 1},
                       {2, 3, 5, 5, 0, 3},
                       {3, 7, 4, 12, 4, 127},
                       {2, 100, 1, 1, 0, 264},
                       {3, 200, 2, 2, 0, 40},
                       {8, 512, 1, 1, 0, 264},
                       {2, 50, 30, 30, 0, 1'025},
                       {4, 512, 100, 300, 100, 1'024},
                       {2, 64, 1'000, 1'000, 0, 4'096}};

TEST_P(EmbeddingCudaTest, Forward) {
  for (const Case& c : kCases) {
    const Tensor ids = random_ids({c.batch, c.length}, c.num_ids, 1);
    const Tensor position_ids = random_ids({c.batch, c.length}, 9, 2);
    const Tensor table = random_normal({c.num_rows, c.cols}, {.seed = 3, .dtype = GetParam()});
    const Tensor position = random_normal({9, c.cols}, {.seed = 4, .dtype = GetParam()});
    const Tensor y = zeros({c.length, c.batch, c.cols}, GetParam(), Stream{});
    for (const bool has_position : {false, true}) {
      for (const int64_t misaligned_by : {0, 1}) {
        expect_twins(
            {y, table, ids, position, position_ids},
            [&](std::vector<Tensor>& t, Stream stream) {
              kernels::embedding_forward(t[0].view(), t[1].view(), t[2].view(), c.first_row,
                                         has_position ? ConstView(t[3].view()) : ConstView{},
                                         has_position ? ConstView(t[4].view()) : ConstView{},
                                         stream);
            },
            {.tolerance = kEmbeddingExact, .misaligned_by = misaligned_by, .what = c.str()});
      }
    }
  }
}

TEST_P(EmbeddingCudaTest, Backward) {
  for (const Case& c : kCases) {
    const Tensor ids = random_ids({c.batch, c.length}, c.num_ids, 1);
    const Tensor dy = random_normal({c.length, c.batch, c.cols}, {.seed = 2, .dtype = GetParam()});
    for (const DType dtype : {GetParam(), DType::kFloat32}) {
      const Tensor dtable = random_normal({c.num_rows, c.cols}, {.seed = 3, .dtype = dtype});
      for (const int64_t misaligned_by : {0, 1}) {
        expect_twins({dtable, dy, ids, sorted_order(ids)},
                     [&](std::vector<Tensor>& t, Stream stream) {
                       kernels::embedding_backward(t[0].view(), t[1].view(), t[2].view(),
                                                   t[3].view(), c.first_row, stream);
                     },
                     {.tolerance = kEmbeddingExact,
                      .misaligned_by = misaligned_by,
                      .what = c.str() + " gradient " + std::string(name_of(dtype))});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, EmbeddingCudaTest, kTrainingDtypes, dtype_name);

}  // namespace
}  // namespace megatron
