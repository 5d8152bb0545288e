#include "megatron/kernels/multiply.h"

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/tiles.h"

namespace megatron::kernels::cpu {

void multiply(TensorView y, ConstView x, ConstView z, Stream) {
  const int64_t cols = y.size(1);
  const bool is_row = z.shape.rank() == 1;
  expect_shape(x.shape, y.shape, "multiply: x");
  expect_shape(z.shape, is_row ? Shape{cols} : y.shape, "multiply: z");
  const TileReader x_tiles(x, "multiply");
  const TileReader z_tiles(z, "multiply");
  const TileWriter out(y, "multiply");
  parallel_for(y.size(0), row_grain(cols), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for_each_tile(cols, [&](int64_t at, int64_t n) {
        Tile x_buffer, z_buffer, y_buffer;
        const float* a = x_tiles.read(row * cols + at, n, x_buffer);
        const float* b = z_tiles.read(is_row ? at : row * cols + at, n, z_buffer);
        float* to = out.begin(row * cols + at, y_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) to[i] = a[i] * b[i];
        out.commit(row * cols + at, n, y_buffer);
      });
    }
  });
}

}  // namespace megatron::kernels::cpu
