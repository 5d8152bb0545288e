#include "megatron/formats/transpose.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

namespace megatron {
namespace {

// Parameter: bytes of an element.
class TransposeTest : public testing::TestWithParam<int64_t> {
 protected:
  // Into the middle of a matrix, whose other bytes must stay.
  void check(int64_t rows, int64_t columns) {
    const int64_t element = GetParam();
    const int64_t x_stride = (columns + 1) * element;
    const int64_t y_stride = (rows + 3) * element;
    std::vector<std::byte> x(static_cast<size_t>(rows * x_stride));
    uint32_t state = 1;
    for (std::byte& byte : x) {
      state = state * 1664525u + 1013904223u;
      byte = static_cast<std::byte>(state >> 24);
    }
    std::vector<std::byte> want(static_cast<size_t>(columns * y_stride), std::byte{7});
    std::vector<std::byte> got = want;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        std::memcpy(want.data() + c * y_stride + (r + 1) * element,
                    x.data() + r * x_stride + c * element, static_cast<size_t>(element));
      }
    }
    transpose({got.data() + element, y_stride}, {x.data(), x_stride}, rows, columns, element);
    EXPECT_TRUE(got == want) << rows << " x " << columns;
  }
};

TEST_P(TransposeTest, EveryEdge) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{1, 1},
                                                                              {3, 5},
                                                                              {16, 16},
                                                                              {17, 31},
                                                                              {130, 67},
                                                                              {64, 300},
                                                                              {515, 33},
                                                                              {1025, 9},
                                                                              {1, 600}}) {
    check(rows, columns);
  }
}
INSTANTIATE_TEST_SUITE_P(ElementBytes, TransposeTest, testing::Values(1, 2, 4, 8));

}  // namespace
}  // namespace megatron
