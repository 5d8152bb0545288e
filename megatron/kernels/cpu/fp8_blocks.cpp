#include "megatron/kernels/fp8_blocks.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/fp8_source.h"
#include "megatron/kernels/cpu/workspace.h"

namespace megatron::kernels::cpu {
namespace {

// A matrix in fp32, or its transpose.
struct Wide {
  const float* data;
  int64_t rows, cols, row_stride, col_stride;

  float at(int64_t row, int64_t col) const { return data[row * row_stride + col * col_stride]; }
};

// Rows [first_row, last_row) of one block's columns.
template <class T>
void store_block(const Fp8Blocked& to, Fp8Blocks blocks, const Wide& v, int64_t first_row,
                 int64_t last_row, int64_t first_col) {
  const int64_t last_col = std::min(v.cols, first_col + kFp8Block);
  float amax = 0;
  for (int64_t i = first_row; i < last_row; ++i) {
    for (int64_t j = first_col; j < last_col; ++j) {
      const float size = std::abs(v.at(i, j));
      if (size > amax || std::isnan(size)) amax = size;
    }
  }
  const float scale = fp8_block_scale(amax, T::largest());
  to.inverses.as<float>()[fp8_scale_place(blocks, first_row, first_col, v.rows, v.cols)] =
      1 / scale;
  T* const matrix = to.matrix.as<T>();
  for (int64_t i = first_row; i < last_row; ++i) {
    for (int64_t j = first_col; j < last_col; ++j) matrix[i * v.cols + j] = T(v.at(i, j) * scale);
  }
}

void store(const Fp8Blocked& to, Fp8Blocks blocks, const Wide& v) {
  if (to.is_null()) return;
  const int64_t height = blocks == Fp8Blocks::kSquare ? kFp8Block : 1;
  dispatch_float8(to.matrix.dtype, "fp8_quantize_blocks", [&]<class T>() {
    parallel_for((v.rows + height - 1) / height, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t last_row = std::min(v.rows, (i + 1) * height);
        for (int64_t col = 0; col < v.cols; col += kFp8Block) {
          store_block<T>(to, blocks, v, i * height, last_row, col);
        }
      }
    });
  });
}

}  // namespace

void fp8_quantize_blocks(const Fp8BlockTarget& target, const Fp8Source& source, Stream stream) {
  const int64_t rows = source.rows();
  const int64_t cols = source.cols();
  const WideScratch wide({rows, cols}, stream);
  evaluate_source(wide.view, source, stream);
  const float* const v = wide.memory.as<float>();
  if (!target.sums.is_null()) sum_source(target.sums.as<float>(), v, rows, cols);
  store(target.rows, target.blocks, {v, rows, cols, cols, 1});
  store(target.columns, target.blocks, {v, cols, rows, 1, cols});
  if (target.value.is_null()) return;
  fp8_quantize_blocks({.columns = target.value}, {source.x, source.activation}, stream);
}

}  // namespace megatron::kernels::cpu
