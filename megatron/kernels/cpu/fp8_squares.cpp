#include "megatron/kernels/fp8_squares.h"

#include <cmath>

#include "megatron/core/float8.h"
#include "megatron/core/parallel_for.h"

namespace megatron::kernels::cpu {
namespace {

// The place in the scales of element i of the matrix.
int64_t place_of(int64_t i, const Shape& matrix) {
  return fp8_scale_place(Fp8Blocks::kSquare, i / matrix[1], i % matrix[1], matrix[0], matrix[1]);
}

}  // namespace

void fp8_measure_squares(TensorView amax, const Fp8Part& part, Stream) {
  auto* const to = amax.as<float>();
  dispatch_floating(part.elements.dtype, "fp8_measure_squares", [&]<class T>() {
    const T* const x = part.elements.as<T>();
    for (int64_t i = 0; i < part.elements.numel(); ++i) {
      float& most = to[place_of(part.begin + i, part.matrix)];
      const float size = std::abs(static_cast<float>(x[i]));
      if (size > most || std::isnan(size)) most = size;
    }
  });
}

void fp8_square_inverses(TensorView by_rows, TensorView by_columns, ConstView amax,
                         const Shape& matrix, Stream) {
  for (int64_t row = 0; row < matrix[0]; row += kFp8Block) {
    for (int64_t col = 0; col < matrix[1]; col += kFp8Block) {
      const int64_t place = fp8_scale_place(Fp8Blocks::kSquare, row, col, matrix[0], matrix[1]);
      const float inverse = 1 / fp8_block_scale(amax.as<float>()[place], Float8E4M3::largest());
      by_rows.as<float>()[place] = inverse;
      by_columns.as<float>()[fp8_scale_place(Fp8Blocks::kSquare, col, row, matrix[1], matrix[0])] =
          inverse;
    }
  }
}

void fp8_quantize_squares(TensorView y, const Fp8Part& part, ConstView inverses, Stream) {
  auto* const to = y.as<Float8E4M3>();
  const auto* const of_squares = inverses.as<float>();
  dispatch_floating(part.elements.dtype, "fp8_quantize_squares", [&]<class T>() {
    const T* const x = part.elements.as<T>();
    parallel_for(part.elements.numel(), 16384, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float inverse = of_squares[place_of(part.begin + i, part.matrix)];
        to[i] = Float8E4M3(static_cast<float>(x[i]) * (1 / inverse));  // a power of two
      }
    });
  });
}

}  // namespace megatron::kernels::cpu
