// FP8 against its definition in fp64: what may differ is one rounding of FP8, and the rounding of
// fp32 before it.
#include "megatron/kernels/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "megatron/kernels/fp8_matmul.h"
#include "megatron/kernels/fp8_scales.h"
#include "megatron/kernels/fp8_transpose.h"
#include "tests/kernels/fp8_cases.h"

namespace megatron {
namespace {

using kernels::Fp8Source;
using kernels::Fp8Target;

std::vector<uint8_t> bytes_of(const Tensor& tensor) {
  const Tensor on_host = tensor.to(Stream{});
  const auto* data = static_cast<const uint8_t*>(on_host.view().data);
  return {data, data + on_host.bytes()};
}

TEST_F(Fp8KernelTest, QuantizesRowsAndColumnsInOnePass) {
  constexpr float kScale = 24.0f;
  for (const Kind kind : kKinds) {
    for (const auto [rows, cols] : kSizes) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        for (const DType to : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
          SCOPED_TRACE(testing::Message()
                       << "kind " << static_cast<int>(kind) << " " << rows << "x" << cols << " "
                       << name_of(dtype) << " to " << name_of(to));
          const Case c(kind, rows, cols, dtype);
          const Stream stream = stream_under_test();
          const Tensor x = there(c.x);
          const Tensor dy = there(c.dy);
          const Tensor scale = filled({1}, kScale);
          Tensor by_rows({rows, cols}, to, stream);
          Tensor by_columns({cols, rows}, to, stream);
          kernels::fp8_quantize({.rows = by_rows.view(), .columns = by_columns.view()},
                                c.source(x, dy), scale.view(), stream);
          const Tensor got = by_rows.to(Stream{});
          const Tensor transposed = by_columns.to(Stream{});
          const auto [relative, smallest] = spacing_of(to);
          const double largest = to == DType::kFloat8E4M3 ? 448 : 57344;
          for (int64_t i = 0; i < rows; ++i) {
            for (int64_t j = 0; j < cols; ++j) {
              const double want =
                  std::clamp(c.v[static_cast<size_t>(i * cols + j)] * kScale, -largest, largest);
              const double bound =
                  std::max(relative * std::abs(want), smallest) + 1e-5 * (std::abs(want) + kScale);
              ASSERT_NEAR(stored(got, i * cols + j), want, bound) << i << ", " << j;
              ASSERT_EQ(stored(transposed, j * rows + i), stored(got, i * cols + j));
            }
          }
        }
      }
    }
  }
}

// The backward pass of a layer makes the value again that the forward pass had quantised.
TEST_F(Fp8KernelTest, AValueComesBesideItsDerivative) {
  for (const Kind kind : {Kind::kGeluGradient, Kind::kSwigluGradient}) {
    for (const auto& [num_rows, num_cols] : kSizes) {
      const int64_t rows = num_rows, cols = num_cols;
      const Case c(kind, rows, cols, DType::kBFloat16);
      const Stream stream = stream_under_test();
      const Tensor x = there(c.x);
      const Tensor dy = there(c.dy);
      const Tensor scale = filled({1}, 24);
      const Tensor value_scale = filled({1}, 30);
      const Fp8Source derivative = c.source(x, dy);
      const Fp8Source value{.x = derivative.x, .activation = derivative.activation};
      const auto columns_of = [&](int64_t count, DType dtype) {
        return Tensor({count, rows}, dtype, stream);
      };
      Tensor want = columns_of(cols, DType::kFloat8E5M2);
      kernels::fp8_quantize({.columns = want.view()}, derivative, scale.view(), stream);
      Tensor want_value = columns_of(value.cols(), DType::kFloat8E4M3);
      kernels::fp8_quantize({.columns = want_value.view()}, value, value_scale.view(), stream);

      Tensor got = columns_of(cols, DType::kFloat8E5M2);
      Tensor got_value = columns_of(value.cols(), DType::kFloat8E4M3);
      kernels::fp8_quantize({.columns = got.view(),
                             .value = {.columns = got_value.view(), .scale = value_scale.view()}},
                            derivative, scale.view(), stream);
      EXPECT_EQ(bytes_of(got), bytes_of(want));
      EXPECT_EQ(bytes_of(got_value), bytes_of(want_value));
    }
  }
}

TEST_F(Fp8KernelTest, PlainNumbersAreRoundedExactly) {
  const Tensor x = random_normal({48, 64}, {.seed = 3, .stddev = 40, .dtype = DType::kBFloat16});
  const Tensor x_there = there(x);
  const Tensor scale = filled({1}, 3.0f);
  Tensor rows({48, 64}, DType::kFloat8E4M3, stream_under_test());
  Tensor inverse = filled({1}, 0);
  kernels::fp8_quantize({.rows = rows.view(), .inverse = inverse.view()}, {.x = x_there.view()},
                        scale.view(), stream_under_test());
  EXPECT_EQ(inverse.item(), 1.0f / 3);
  const Tensor got = rows.to(Stream{});
  for (int64_t i = 0; i < x.numel(); ++i) {
    const Float8E4M3 want(static_cast<float>(element(x, i)) * 3.0f);
    ASSERT_EQ(got.span<Float8E4M3>()[static_cast<size_t>(i)].bits, want.bits) << i;
  }
}

TEST_F(Fp8KernelTest, ATransposeIsTheColumns) {
  for (const auto [rows, cols] : kSizes) {
    const Case c(Kind::kPlain, rows, cols, DType::kBFloat16);
    const Tensor x = there(c.x);
    const Tensor scale = filled({1}, 24);
    Tensor by_rows({rows, cols}, DType::kFloat8E5M2, stream_under_test());
    Tensor by_columns({cols, rows}, DType::kFloat8E5M2, stream_under_test());
    kernels::fp8_quantize({.rows = by_rows.view(), .columns = by_columns.view()}, {.x = x.view()},
                          scale.view(), stream_under_test());
    Tensor transposed({cols, rows}, DType::kFloat8E5M2, stream_under_test());
    kernels::fp8_transpose(transposed.view(), by_rows.view(), stream_under_test());
    EXPECT_EQ(bytes_of(transposed), bytes_of(by_columns)) << rows << "x" << cols;
  }
}

TEST_F(Fp8KernelTest, AmaxAndSumsComeFromTheSamePass) {
  for (const Kind kind : kKinds) {
    for (const auto [rows, cols] : kSizes) {
      const Case c(kind, rows, cols, DType::kBFloat16);
      const Tensor x = there(c.x);
      const Tensor dy = there(c.dy);
      const int64_t num_sums = (rows + kernels::kFp8SumRows - 1) / kernels::kFp8SumRows;
      Tensor amax = filled({1}, 0.5f);
      Tensor sums = filled({num_sums, cols}, 7.0f);
      kernels::fp8_quantize({.amax = amax.view(), .sums = sums.view()}, c.source(x, dy), {},
                            stream_under_test());
      double most = 0.5;
      std::vector<double> want(static_cast<size_t>(num_sums * cols));
      for (int64_t i = 0; i < rows * cols; ++i) {
        const double v = c.v[static_cast<size_t>(i)];
        most = std::max(most, std::abs(v));
        want[static_cast<size_t>(i / cols / kernels::kFp8SumRows * cols + i % cols)] += v;
      }
      EXPECT_NEAR(amax.item(), most, 1e-5 * most);
      const Tensor got = sums.to(Stream{});
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(element(got, static_cast<int64_t>(i)), want[i], 1e-3);
      }
    }
  }
}

TEST_F(Fp8KernelTest, AmaxIsRaisedAndKeepsNan) {
  Tensor x = full({16, 16}, -2.0f, DType::kFloat32, Stream{});
  const Tensor plain = there(x);
  Tensor amax = filled({1}, 3.0f);
  kernels::fp8_quantize({.amax = amax.view()}, {.x = plain.view()}, {}, stream_under_test());
  EXPECT_EQ(amax.item(), 3);
  x.span<float>()[37] = std::numeric_limits<float>::quiet_NaN();
  const Tensor with_nan = x.to(stream_under_test());
  kernels::fp8_quantize({.amax = amax.view()}, {.x = with_nan.view()}, {}, stream_under_test());
  EXPECT_TRUE(std::isnan(amax.item()));
  kernels::fp8_quantize({.amax = amax.view()}, {.x = plain.view()}, {}, stream_under_test());
  EXPECT_TRUE(std::isnan(amax.item()));
}

TEST_F(Fp8KernelTest, ScaleMapsAmaxToTheLargest) {
  const auto scale_of = [](float amax) {
    const Tensor of = filled({1}, amax);
    Tensor scale = filled({1}, -1);
    kernels::fp8_scale(scale.view(), of.view(), 448, stream_under_test());
    return scale.to(Stream{});
  };
  EXPECT_EQ(element(scale_of(7), 0), 64);
  EXPECT_EQ(element(scale_of(0), 0), 1);
  EXPECT_EQ(element(scale_of(std::numeric_limits<float>::infinity()), 0), 1);
  EXPECT_EQ(element(scale_of(std::numeric_limits<float>::quiet_NaN()), 0), 1);
  EXPECT_TRUE(std::isfinite(element(scale_of(1e-40f), 0)));
}

// Two layers, a history of three iterations.
class Fp8UpdateTest : public Fp8KernelTest {
 protected:
  void SetUp() override {
    Fp8KernelTest::SetUp();
    if (IsSkipped()) return;
    std::vector<int64_t> addresses;
    for (int layer = 0; layer < 2; ++layer) {
      scales_.push_back(filled({3}, 1));
      histories_.push_back(filled({3, 3}, 0));
      addresses.push_back(reinterpret_cast<int64_t>(scales_.back().view().data));
      addresses.push_back(reinterpret_cast<int64_t>(histories_.back().view().data));
    }
    layers_ = there(tensor_of(addresses, {2, 2}));
  }

  void update(const std::vector<float>& amax, const kernels::Fp8Update& how) {
    Tensor there = tensor_of(amax, {2, 3}).to(stream_under_test());
    kernels::fp8_update_scales(layers_.view(), there.view(), how, stream_under_test());
    EXPECT_EQ(largest(there.to(Stream{})), 0) << "the next iteration starts with nothing";
  }
  double scale(size_t layer, int64_t tensor) const {
    return element(scales_[layer].to(Stream{}), tensor);
  }

  std::vector<Tensor> scales_;
  std::vector<Tensor> histories_;
  Tensor layers_;
};

TEST_F(Fp8UpdateTest, UsesTheLatestAmaxOrTheHistory) {
  kernels::Fp8Update how{.length = 3, .largest = {448, 448, 57344}};
  update({4, 2, 1, 8, 8, 8}, how);
  EXPECT_EQ(scale(0, 0), 112);
  EXPECT_EQ(scale(0, 1), 224);
  EXPECT_EQ(scale(0, 2), 57344);
  EXPECT_EQ(scale(1, 0), 56);

  how.position = 1;
  update({1, 1, 1, 1, 1, 1}, how);
  EXPECT_EQ(scale(1, 0), 448) << "the latest";
  EXPECT_EQ(element(histories_[1].to(Stream{}), 0), 8);
  EXPECT_EQ(element(histories_[1].to(Stream{}), 3), 1);

  how.position = 2;
  how.uses_maximum = true;
  update({2, 1, 1, 1, 16, 1}, how);
  EXPECT_EQ(scale(0, 0), 112) << "4, from the first iteration";
  EXPECT_EQ(scale(1, 1), 28);
  how.position = 0;
  update({1, 1, 1, 1, 1, 1}, how);
  EXPECT_EQ(scale(0, 0), 224) << "2: the first iteration is forgotten";
}

TEST_F(Fp8UpdateTest, KeepsScalesWithoutAnAmax) {
  kernels::Fp8Update how{.length = 3, .largest = {448, 448, 57344}};
  update({4, 4, 4, 4, 4, 4}, how);
  update(
      {0, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 2, 2, 2},
      how);
  EXPECT_EQ(scale(0, 0), 112);
  EXPECT_EQ(scale(0, 1), 112);
  EXPECT_EQ(scale(0, 2), 14336);
  EXPECT_EQ(scale(1, 0), 224);
  how.changes_scales = false;
  update({1, 1, 1, 1, 1, 1}, how);
  EXPECT_EQ(scale(1, 0), 224);
  EXPECT_EQ(element(histories_[1].to(Stream{}), 0), 1) << "the history goes on";
}

struct Fp8ProductCase {
  int64_t m, n, k;
  DType a = DType::kFloat8E4M3;
  DType b = DType::kFloat8E4M3;
  DType c = DType::kBFloat16;
  bool has_bias = false;
  float beta = 0;
};

class Fp8MatmulTest : public Fp8KernelTest {
 protected:
  static void check(const Fp8ProductCase& p) {
    const Stream stream = stream_under_test();
    const Tensor a = random_float8({p.m, p.k}, 1, p.a);
    const Tensor b = random_float8({p.n, p.k}, 2, p.b);
    const Tensor bias = random_normal({p.n}, {.seed = 3, .stddev = 4, .dtype = p.c});
    const Tensor old = random_normal({p.m, p.n}, {.seed = 4, .stddev = 4, .dtype = p.c});
    const Tensor a_there = there(a);
    const Tensor b_there = there(b);
    const Tensor bias_there = there(bias);
    const Tensor inverse_a = filled({1}, 1.0f / 24);
    const Tensor inverse_b = filled({1}, 1.0f / 7);
    Tensor c = copied(there(old));
    kernels::fp8_matmul(c.view(), {a_there.view(), inverse_a.view()},
                        {b_there.view(), inverse_b.view()},
                        p.has_bias ? bias_there.view() : ConstView{}, p.beta, stream);
    expect_product(
        c, p.k, [&](int64_t i, int64_t l) { return stored(a, i * p.k + l) / 24; },
        [&](int64_t j, int64_t l) { return stored(b, j * p.k + l) / 7; },
        p.has_bias ? &bias : nullptr, old, p.beta);
  }
};

TEST_F(Fp8MatmulTest, IsTheProductOfWhatIsStored) {
  constexpr DType kE5M2 = DType::kFloat8E5M2;
  const Fp8ProductCase cases[] = {
      {.m = 16, .n = 16, .k = 16},
      {.m = 48, .n = 80, .k = 112, .has_bias = true},
      {.m = 144, .n = 48, .k = 400, .has_bias = true},
      {.m = 64, .n = 96, .k = 160, .a = kE5M2},
      {.m = 64, .n = 32, .k = 272, .a = kE5M2, .c = DType::kFloat32, .beta = 1},
      {.m = 32, .n = 32, .k = 32, .b = kE5M2, .c = DType::kFloat16},
      {.m = 32, .n = 48, .k = 64, .c = DType::kFloat32, .has_bias = true},
  };
  for (const Fp8ProductCase& p : cases) {
    SCOPED_TRACE(testing::Message() << p.m << "x" << p.n << "x" << p.k);
    check(p);
  }
}

TEST_F(Fp8MatmulTest, TwoE5M2AreNoProduct) {
  const Tensor a = random_float8({16, 16}, 1, DType::kFloat8E5M2);
  const Tensor a_there = there(a);
  const Tensor one = filled({1}, 1);
  Tensor c({16, 16}, DType::kFloat32, stream_under_test());
  EXPECT_THROW(kernels::fp8_matmul(c.view(), {a_there.view(), one.view()},
                                   {a_there.view(), one.view()}, {}, 0, stream_under_test()),
               DtypeError);
}

}  // namespace
}  // namespace megatron
