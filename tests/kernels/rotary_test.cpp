#include "megatron/kernels/rotary.h"

#include <cmath>
#include <vector>

#include "megatron/core/error.h"
#include "tests/support/tensors.h"

namespace megatron {
namespace {

using kernels::RotaryPairs;

constexpr int64_t kRows = 12;

// Angle of pair i at a position: anything will do.
double angle(int64_t position, int64_t i) {
  return 0.3 * static_cast<double>(position) + static_cast<double>(i);
}

Tensor table_of(int64_t dim) {
  std::vector<float> table;
  for (int64_t p = 0; p < kRows; ++p) {
    for (int64_t i = 0; i < dim / 2; ++i)
      table.push_back(static_cast<float>(std::cos(angle(p, i))));
    for (int64_t i = 0; i < dim / 2; ++i)
      table.push_back(static_cast<float>(std::sin(angle(p, i))));
  }
  return tensor_of(table, {kRows, dim});
}

Tensor rotated(const Tensor& x, int64_t heads, const Tensor& table, ConstView ids, int64_t offset,
               RotaryPairs pairs, bool inverse) {
  Tensor y = copied(x);
  kernels::rotary_inplace(kernels::heads_of(y.view(), heads), table.view(), ids, offset, pairs,
                          inverse, Stream{});
  return y;
}

// The definition, in fp64: a complex product.
Tensor rotary_reference(const Tensor& x, int64_t heads, int64_t dim, const Tensor& ids,
                        int64_t offset, RotaryPairs pairs) {
  const int64_t b = x.size(1);
  const int64_t d = x.size(2) / heads;
  std::vector<double> y;
  for (int64_t e = 0; e < x.numel(); ++e) y.push_back(element(x, e));
  for (int64_t row = 0; row < x.numel() / d; ++row) {
    const int64_t token = row / heads;
    const int64_t position =
        ids.defined() ? static_cast<int64_t>(element(ids, token % b * x.size(0) + token / b))
                      : offset + token / b;
    for (int64_t i = 0; i < dim / 2; ++i) {
      const int64_t first = row * d + (pairs == RotaryPairs::kHalves ? i : 2 * i);
      const int64_t second = first + (pairs == RotaryPairs::kHalves ? dim / 2 : 1);
      const double a = element(x, first);
      const double c = element(x, second);
      const double theta = angle(position, i);
      y[static_cast<size_t>(first)] = a * std::cos(theta) - c * std::sin(theta);
      y[static_cast<size_t>(second)] = c * std::cos(theta) + a * std::sin(theta);
    }
  }
  return tensor_of(y, x.shape());
}

TEST(RotaryTest, MatchesTheDefinition) {
  const Tensor ids = tensor_of(std::vector<int64_t>{0, 1, 0, 1, 2, 3, 11, 0, 0, 5}, {2, 5});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const Tensor x = random_normal({5, 2, 3 * 10}, {.seed = 1, .dtype = dtype});
    for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kInterleaved}) {
      for (const int64_t dim : {2, 6, 10}) {
        const Tensor table = table_of(dim);
        Tolerance tolerance = tolerance_of(dtype);
        tolerance.absolute = tolerance.relative;  // the two terms may cancel
        expect_close(rotated(x, 3, table, {}, 7, pairs, false),
                     rotary_reference(x, 3, dim, Tensor(), 7, pairs), tolerance);
        expect_close(rotated(x, 3, table, ids.view(), 0, pairs, false),
                     rotary_reference(x, 3, dim, ids, 0, pairs), tolerance);
      }
    }
  }
}

TEST(RotaryTest, InverseRotatesBack) {
  const Tensor x = random_normal({5, 2, 8}, {.seed = 1});
  const Tensor table = table_of(8);
  for (const RotaryPairs pairs : {RotaryPairs::kHalves, RotaryPairs::kInterleaved}) {
    const Tensor there = rotated(x, 1, table, {}, 0, pairs, false);
    expect_close(rotated(there, 1, table, {}, 0, pairs, true), x, Tolerance{1e-6, 1e-6});
  }
}

TEST(RotaryTest, NoTokens) {
  rotated(Tensor({0, 2, 8}, DType::kFloat32, Stream{}), 1, table_of(8), {}, 0, RotaryPairs::kHalves,
          false);
}

TEST(RotaryTest, RefusesWhatDoesNotFit) {
  const Tensor x = random_normal({5, 1, 8}, {.seed = 1});
  const auto run = [&](int64_t dim, const Tensor& ids, int64_t offset) {
    rotated(x, 1, table_of(dim), ids.defined() ? ids.view() : ConstView{}, offset,
            RotaryPairs::kHalves, false);
  };
  EXPECT_EQ(message_of<ShapeError>([&] { run(10, Tensor(), 0); }),
            "rotary: 10 channels must be even and at most the head size 8; change "
            "--rotary-percent");
  EXPECT_EQ(message_of<ShapeError>([&] { run(8, Tensor(), 8); }),
            "rotary: the table has 12 positions, 13 are needed; make it longer");
  const Tensor ids = tensor_of(std::vector<int64_t>{0, 1, 12, 3, 4}, {1, 5});
  EXPECT_EQ(message_of<ShapeError>([&] { run(8, ids, 0); }),
            "rotary: position 12 is outside the table of 12; make it longer");
}

}  // namespace
}  // namespace megatron
