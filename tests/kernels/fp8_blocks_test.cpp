// FP8 with a scale for each block against its definition in fp64.
#include "megatron/kernels/fp8_blocks.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "megatron/kernels/fp8_matmul.h"
#include "megatron/kernels/fp8_squares.h"
#include "tests/kernels/fp8_cases.h"

namespace megatron {
namespace {

using kernels::Fp8Blocked;
using kernels::Fp8Blocks;
using kernels::Fp8BlockTarget;

// A matrix in FP8 on the device under test; padding of its inverses is NaN.
struct Blocked {
  Blocked(const Shape& shape, Fp8Blocks with, DType dtype)
      : blocks(with),
        matrix(shape, dtype, stream_under_test()),
        inverses(full(kernels::fp8_scales_shape(with, shape),
                      std::numeric_limits<float>::quiet_NaN(), DType::kFloat32,
                      stream_under_test())) {}

  Fp8Blocked target() { return {matrix.view(), inverses.view()}; }
  kernels::Fp8Factor factor() const { return {matrix.view(), inverses.view(), blocks}; }

  Fp8Blocks blocks;
  Tensor matrix;
  Tensor inverses;
};

// Its values on the host.
struct Read {
  explicit Read(const Blocked& x)
      : blocks(x.blocks),
        dtype(x.matrix.dtype()),
        rows(x.matrix.size(0)),
        cols(x.matrix.size(1)),
        inverses(x.inverses.to(Stream{})) {
    const Tensor matrix = x.matrix.to(Stream{});
    values.reserve(static_cast<size_t>(matrix.numel()));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        values.push_back(stored(matrix, i * cols + j) * inverse(i, j));
      }
    }
  }

  double inverse(int64_t i, int64_t j) const {
    const int64_t place = kernels::fp8_scale_place(blocks, i, j, rows, cols);
    return inverses.span<float>()[static_cast<size_t>(place)];
  }
  double value(int64_t i, int64_t j) const { return values[static_cast<size_t>(i * cols + j)]; }

  Fp8Blocks blocks;
  DType dtype;
  int64_t rows, cols;
  Tensor inverses;
  std::vector<double> values;
};

// Checks that x has the elements of v, and that each scale is the power of two required by its
// block.
//   v(i, j) for rows of x, which may be those of a transpose
template <class V>
void expect_blocks(const Read& x, const V& v, double noise) {
  const auto [relative, smallest] = spacing_of(x.dtype);
  const double largest = x.dtype == DType::kFloat8E4M3 ? 448 : 57344;
  const int64_t height = x.blocks == Fp8Blocks::kSquare ? kernels::kFp8Block : 1;
  for (int64_t row = 0; row < x.rows; row += height) {
    for (int64_t col = 0; col < x.cols; col += kernels::kFp8Block) {
      const double inverse = x.inverse(row, col);
      double amax = 0;
      for (int64_t i = row; i < std::min(x.rows, row + height); ++i) {
        for (int64_t j = col; j < std::min(x.cols, col + kernels::kFp8Block); ++j) {
          const double want = v(i, j);
          amax = std::max(amax, std::abs(want));
          ASSERT_EQ(x.inverse(i, j), inverse);
          const double bound = std::max(relative * std::abs(want), smallest * inverse);
          ASSERT_NEAR(x.value(i, j), want, bound + noise * (1 + std::abs(want))) << i << ", " << j;
        }
      }
      int exponent = 0;
      ASSERT_EQ(std::frexp(inverse, &exponent), 0.5) << "a power of two";
      ASSERT_LE(amax / inverse, largest * (1 + noise));
      ASSERT_GT(amax / inverse, largest / 2 * (1 - noise)) << row << ", " << col;
    }
  }
}

class Fp8BlocksTest : public Fp8KernelTest {};

TEST_F(Fp8BlocksTest, EachLineHasItsScaleInBothDirections) {
  for (const Kind kind : kKinds) {
    for (const auto [rows, cols] : kSizes) {
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        for (const DType to : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
          SCOPED_TRACE(testing::Message()
                       << "kind " << static_cast<int>(kind) << " " << rows << "x" << cols << " "
                       << name_of(dtype) << " to " << name_of(to));
          const Case c(kind, rows, cols, dtype);
          const Tensor x = there(c.x);
          const Tensor dy = there(c.dy);
          Blocked by_rows({rows, cols}, Fp8Blocks::kLine, to);
          Blocked by_columns({cols, rows}, Fp8Blocks::kLine, to);
          kernels::fp8_quantize_blocks({.rows = by_rows.target(), .columns = by_columns.target()},
                                       c.source(x, dy), stream_under_test());
          const auto at = [&, width = cols](int64_t i, int64_t j) {
            return c.v[static_cast<size_t>(i * width + j)];
          };
          const double noise = kind == Kind::kPlain ? 0 : 1e-5;
          expect_blocks(Read(by_rows), at, noise);
          expect_blocks(
              Read(by_columns), [&](int64_t i, int64_t j) { return at(j, i); }, noise);
        }
      }
    }
  }
}

TEST_F(Fp8BlocksTest, ASquareHasOneScaleInBothDirections) {
  for (const auto [rows, cols] : kSizes) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const Case c(Kind::kPlain, rows, cols, dtype);
      const Tensor x = there(c.x);
      Blocked by_rows({rows, cols}, Fp8Blocks::kSquare, DType::kFloat8E4M3);
      Blocked by_columns({cols, rows}, Fp8Blocks::kSquare, DType::kFloat8E4M3);
      kernels::fp8_quantize_blocks(
          {.blocks = Fp8Blocks::kSquare, .rows = by_rows.target(), .columns = by_columns.target()},
          {.x = x.view()}, stream_under_test());
      const Read got(by_rows);
      const Read transposed(by_columns);
      expect_blocks(
          got,
          [&, width = cols](int64_t i, int64_t j) {
            return c.v[static_cast<size_t>(i * width + j)];
          },
          0);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) ASSERT_EQ(got.value(i, j), transposed.value(j, i));
      }
    }
  }
}

// The backward pass of a layer makes the value again that the forward pass had quantised.
// Parts that cut rows and squares: what they make together has the bits of the whole.
TEST_F(Fp8BlocksTest, PartsOfSquaresAreTogetherTheWhole) {
  const Stream stream = stream_under_test();
  const Shape shape{272, 400};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Tensor on_host = random_normal(shape, {.seed = 5, .stddev = 3});
    on_host.span<float>()[7] = 1e4f;
    on_host.span<float>()[130 * 400 + 130] = std::numeric_limits<float>::quiet_NaN();
    for (int64_t i = 256; i < 272; ++i) {
      std::ranges::fill(on_host.slice(i, 1).span<float>().subspan(384), 0.0f);
    }
    const Tensor x = there(cast(on_host, dtype));
    Blocked rows(shape, Fp8Blocks::kSquare, DType::kFloat8E4M3);
    Blocked columns({400, 272}, Fp8Blocks::kSquare, DType::kFloat8E4M3);
    kernels::fp8_quantize_blocks(
        {.blocks = Fp8Blocks::kSquare, .rows = rows.target(), .columns = columns.target()},
        {.x = x.view()}, stream);

    Blocked got(shape, Fp8Blocks::kSquare, DType::kFloat8E4M3);
    Tensor of_columns =
        copied(Blocked({400, 272}, Fp8Blocks::kSquare, DType::kFloat8E4M3).inverses);
    Tensor amax = zeros(got.inverses.shape(), DType::kFloat32, stream);
    const Tensor flat = x.reshape({x.numel()});
    const int64_t ends[] = {0, 2048, 2064, 54'400, 108'800};
    const auto for_parts = [&](const auto& use) {
      for (size_t i = 0; i + 1 < std::size(ends); ++i) {
        const Tensor part = flat.slice(ends[i], ends[i + 1] - ends[i]);
        use(kernels::Fp8Part{part.view(), ends[i], shape}, part.numel());
      }
    };
    for_parts([&](const kernels::Fp8Part& part, int64_t) {
      kernels::fp8_measure_squares(amax.view(), part, stream);
    });
    kernels::fp8_square_inverses(got.inverses.view(), of_columns.view(), std::as_const(amax).view(),
                                 shape, stream);
    const Tensor numbers = got.matrix.reshape({x.numel()});
    for_parts([&](const kernels::Fp8Part& part, int64_t n) {
      Tensor to = numbers.slice(part.begin, n);
      kernels::fp8_quantize_squares(to.view(), part, std::as_const(got.inverses).view(), stream);
    });
    expect_identical(got.matrix.to(Stream{}), rows.matrix.to(Stream{}), "rows");
    expect_identical(got.inverses.to(Stream{}), rows.inverses.to(Stream{}), "inverses of rows");
    expect_identical(of_columns.to(Stream{}), columns.inverses.to(Stream{}), "of columns");
  }
}

TEST_F(Fp8BlocksTest, AValueComesBesideItsDerivative) {
  for (const Kind kind : {Kind::kGeluGradient, Kind::kSwigluGradient}) {
    for (const auto [rows, cols] : kSizes) {
      const Case c(kind, rows, cols, DType::kBFloat16);
      const Tensor x = there(c.x);
      const Tensor dy = there(c.dy);
      const kernels::Fp8Source derivative = c.source(x, dy);
      const kernels::Fp8Source value{.x = derivative.x, .activation = derivative.activation};
      const int64_t num_sums = (rows + kernels::kFp8SumRows - 1) / kernels::kFp8SumRows;
      const auto make = [&](const kernels::Fp8Source& source, const Fp8Blocked& columns,
                            const Fp8Blocked& beside, Tensor* sums) {
        kernels::fp8_quantize_blocks({.columns = columns,
                                      .value = beside,
                                      .sums = sums == nullptr ? TensorView{} : sums->view()},
                                     source, stream_under_test());
      };
      Blocked want({cols, rows}, Fp8Blocks::kLine, DType::kFloat8E5M2);
      Blocked want_value({value.cols(), rows}, Fp8Blocks::kLine, DType::kFloat8E4M3);
      make(derivative, want.target(), {}, nullptr);
      make(value, want_value.target(), {}, nullptr);
      Blocked got({cols, rows}, Fp8Blocks::kLine, DType::kFloat8E5M2);
      Blocked got_value({value.cols(), rows}, Fp8Blocks::kLine, DType::kFloat8E4M3);
      Tensor sums = filled({num_sums, cols}, 7.0f);
      make(derivative, got.target(), got_value.target(), &sums);
      for (const auto& [one, other] :
           {std::pair(&got, &want), std::pair(&got_value, &want_value)}) {
        const Read a(*one);
        const Read b(*other);
        for (int64_t i = 0; i < a.rows; ++i) {
          for (int64_t j = 0; j < rows; ++j) ASSERT_EQ(a.value(i, j), b.value(i, j));
        }
      }
      std::vector<double> want_sums(static_cast<size_t>(num_sums * cols));
      for (int64_t i = 0; i < rows * cols; ++i) {
        want_sums[static_cast<size_t>(i / cols / kernels::kFp8SumRows * cols + i % cols)] +=
            c.v[static_cast<size_t>(i)];
      }
      const Tensor got_sums = sums.to(Stream{});
      for (size_t i = 0; i < want_sums.size(); ++i) {
        ASSERT_NEAR(element(got_sums, static_cast<int64_t>(i)), want_sums[i], 1e-3);
      }
    }
  }
}

// A large number takes the precision of its neighbours, and not of others.
TEST_F(Fp8BlocksTest, AnOutlierStaysInItsBlock) {
  Tensor x = full({256, 256}, 1.0f, DType::kFloat32, Stream{});
  x.span<float>()[3] = 1e6f;
  x.span<float>()[static_cast<size_t>(256 * 256 - 1)] = 0;
  const Tensor x_there = there(x);
  Blocked lines({256, 256}, Fp8Blocks::kLine, DType::kFloat8E4M3);
  kernels::fp8_quantize_blocks({.rows = lines.target()}, {.x = x_there.view()},
                               stream_under_test());
  const Read got(lines);
  EXPECT_NEAR(got.value(0, 3), 1e6, 1e6 / 16);
  EXPECT_EQ(got.value(0, 4), 0) << "a neighbour";
  EXPECT_EQ(got.value(0, 128), 1);
  EXPECT_EQ(got.value(1, 3), 1);
  EXPECT_EQ(got.value(255, 255), 0);
}

TEST_F(Fp8BlocksTest, ABlockWithoutAnAmaxHasTheScaleOne) {
  Tensor x = full({16, 384}, 0.0f, DType::kFloat32, Stream{});
  x.span<float>()[130] = std::numeric_limits<float>::quiet_NaN();
  x.span<float>()[131] = 2;
  x.span<float>()[256] = 1e-42f;
  const Tensor x_there = there(x);
  Blocked lines({16, 384}, Fp8Blocks::kLine, DType::kFloat8E4M3);
  kernels::fp8_quantize_blocks({.rows = lines.target()}, {.x = x_there.view()},
                               stream_under_test());
  const Read got(lines);
  EXPECT_EQ(got.inverse(0, 0), 1);
  EXPECT_EQ(got.inverse(0, 128), 1);
  EXPECT_TRUE(std::isnan(got.value(0, 130)));
  EXPECT_EQ(got.value(0, 131), 2);
  EXPECT_EQ(got.inverse(0, 256), 0x1p-126) << "a normal number";
}

struct ProductCase {
  int64_t m, n, k;
  Fp8Blocks b = Fp8Blocks::kSquare;
  DType a = DType::kFloat8E4M3;
  DType c = DType::kBFloat16;
  bool has_bias = false;
  float beta = 0;
};

// A matrix whose blocks differ by powers of ten, in FP8.
Blocked made(int64_t rows, int64_t cols, uint64_t seed, Fp8Blocks blocks, DType dtype) {
  Tensor x = random_normal({rows, cols}, {.seed = seed});
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      x.span<float>()[static_cast<size_t>(i * cols + j)] *=
          std::pow(10.0f, static_cast<float>((i / 32 + 2 * (j / 128)) % 5 - 2));
    }
  }
  const Tensor x_there = x.to(stream_under_test());
  Blocked y({rows, cols}, blocks, dtype);
  kernels::fp8_quantize_blocks({.blocks = blocks, .rows = y.target()}, {.x = x_there.view()},
                               stream_under_test());
  return y;
}

void check(const ProductCase& p) {
  const Stream stream = stream_under_test();
  const Blocked a = made(p.m, p.k, 1, Fp8Blocks::kLine, p.a);
  const Blocked b = made(p.n, p.k, 2, p.b, DType::kFloat8E4M3);
  const Tensor bias = random_normal({p.n}, {.seed = 3, .stddev = 4, .dtype = p.c});
  const Tensor old = random_normal({p.m, p.n}, {.seed = 4, .stddev = 4, .dtype = p.c});
  const Tensor bias_there = bias.to(stream);
  Tensor c = copied(old.to(stream));
  kernels::fp8_matmul(c.view(), a.factor(), b.factor(),
                      p.has_bias ? bias_there.view() : ConstView{}, p.beta, stream);
  const Read left(a);
  const Read right(b);
  expect_product(
      c, p.k, [&](int64_t i, int64_t l) { return left.value(i, l); },
      [&](int64_t j, int64_t l) { return right.value(j, l); }, p.has_bias ? &bias : nullptr, old,
      p.beta);
}

// The three products of a layer: lines times squares, with the transposed weight, and lines times
// lines; blocks that are cut off at the end, and rows of squares that need padding.
TEST_F(Fp8BlocksTest, AProductHasTheScaleOfEachBlock) {
  constexpr DType kE5M2 = DType::kFloat8E5M2;
  constexpr DType kWide = DType::kFloat32;
  const ProductCase cases[] = {
      {.m = 128, .n = 128, .k = 128},
      {.m = 16, .n = 32, .k = 64},
      {.m = 272, .n = 160, .k = 144, .has_bias = true},
      {.m = 144, .n = 272, .k = 656, .has_bias = true},
      {.m = 144, .n = 144, .k = 400, .a = kE5M2},
      {.m = 272, .n = 144, .k = 528, .b = Fp8Blocks::kLine},
      {.m = 160, .n = 144, .k = 272, .b = Fp8Blocks::kLine, .a = kE5M2, .c = kWide, .beta = 1},
      {.m = 144, .n = 160, .k = 272, .b = Fp8Blocks::kLine, .c = kWide, .beta = 1},
      {.m = 32, .n = 48, .k = 256, .c = DType::kFloat16},
  };
  for (const ProductCase& p : cases) {
    SCOPED_TRACE(testing::Message() << p.m << "x" << p.n << "x" << p.k);
    check(p);
  }
}

}  // namespace
}  // namespace megatron
