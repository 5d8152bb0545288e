#include "megatron/kernels/cuda/dropout_mask.cuh"
#include "megatron/kernels/dropout.h"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "bias_dropout_add";

// The rounded products and sums prevent contraction by the compiler, for the CPU's bits.
__global__ void __launch_bounds__(kThreads)
    bias_dropout_add_kernel(Sink y, Source x, Source bias, Source residual, DropoutMask mask,
                            int64_t first_column, int64_t rows, int64_t cols) {
  const RowPack here(rows, cols);
  const int n = here.count;
  if (n <= 0) return;
  const int64_t at = here.row * cols + here.column;
  const Words raw_x = x.fetch(at, n);
  const Words raw_residual = residual.is_null() ? Words{} : residual.fetch(at, n);
  const MaskRow row_words = mask_row(mask, here.row);
  Floats out = x.floats(raw_x);
  if (!bias.is_null()) {
    const Floats b = bias.read(here.column, n);
#pragma unroll
    for (int i = 0; i < kVector; ++i) out.values[i] = __fadd_rn(out.values[i], b.values[i]);
  }
  apply(mask, row_words, first_column + here.column, out);
  if (!residual.is_null()) {
    const Floats from = residual.floats(raw_residual);
#pragma unroll
    for (int i = 0; i < kVector; ++i) out.values[i] = __fadd_rn(from.values[i], out.values[i]);
  }
  y.write(at, n, out);
}

// bias_dropout_add_forward() with the words of columns that begin at first_column.
void drop(TensorView y, ConstView x, ConstView bias, ConstView residual, const DropoutKey& key,
          int64_t first_column, Stream stream) {
  expect_shape(x.shape, y.shape, "bias_dropout_add: x");
  if (residual.data != nullptr) {
    expect_shape(residual.shape, y.shape, "bias_dropout_add: residual");
  }
  const int64_t batch = x.size(1);
  const int64_t rows = x.size(0) * batch;
  const int64_t cols = x.size(2);
  if (bias.data != nullptr) expect_shape(bias.shape, {cols}, "bias_dropout_add: bias");
  if (y.numel() == 0) return;
  const DropoutMask mask = dropout_mask_of(key, batch);
  const auto [grid, block] = row_grid(rows, cols, kWho);
  bias_dropout_add_kernel<<<grid, block, 0, native(stream)>>>(
      sink_of(y, cols, kWho), source_of(x, cols, kWho), source_of(bias, cols, kWho),
      source_of(residual, cols, kWho), mask, first_column, rows, cols);
  MG_CUDA(cudaGetLastError());
}

}  // namespace

void bias_dropout_add_forward(TensorView y, ConstView x, ConstView bias, ConstView residual,
                              DropoutKey key, Stream stream) {
  drop(y, x, bias, residual, key, 0, stream);
}

void dropout(TensorView y, ConstView x, DropoutKey key, int64_t first_column, Stream stream) {
  drop(y, x, ConstView{}, ConstView{}, key, first_column, stream);
}

}  // namespace megatron::kernels::cuda
