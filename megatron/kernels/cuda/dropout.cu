#include "megatron/device/philox.h"
#include "megatron/kernels/cuda/pack.cuh"
#include "megatron/kernels/dropout.h"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "bias_dropout_add";

struct Mask {
  DropoutKey key;
  uint32_t threshold;
  float scale;
  uint32_t batch;  // rows are [s, b]: position, sample
  bool is_active;
};

// Multiplies a pack of a row by 0 or the scale. The same words as on the CPU (device/random.h).
__device__ inline void apply(const Mask& mask, int64_t row, int64_t column, Floats& pack) {
  const auto position = static_cast<uint32_t>(row) / mask.batch;
  const auto in_batch = static_cast<uint32_t>(row) % mask.batch;
  const auto sample = static_cast<uint64_t>(mask.key.sample(in_batch));
  const auto i = static_cast<uint32_t>(mask.key.first_row + position);
#pragma unroll
  for (int half = 0; half < kVector / 4; ++half) {
    const auto words = philox({static_cast<uint32_t>(column / 4) + static_cast<uint32_t>(half), i,
                               static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)},
                              mask.key.key);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float& value = pack.values[4 * half + k];
      value = __fmul_rn(value, words[static_cast<size_t>(k)] < mask.threshold ? mask.scale : 0.0f);
    }
  }
}

// The rounded products and sums keep the compiler from contracting them: the CPU's bits.
__global__ void __launch_bounds__(kThreads)
    bias_dropout_add_kernel(Sink y, Source x, Source bias, Source residual, Mask mask, int64_t rows,
                            int64_t cols) {
  const RowPack here(rows, cols);
  const int n = here.count;
  if (n <= 0) return;
  const int64_t at = here.row * cols + here.column;
  const Words raw_x = x.fetch(at, n);
  const Words raw_residual = residual.is_null() ? Words{} : residual.fetch(at, n);
  Floats out = x.floats(raw_x);
  if (!bias.is_null()) {
    const Floats b = bias.read(here.column, n);
#pragma unroll
    for (int i = 0; i < kVector; ++i) out.values[i] = __fadd_rn(out.values[i], b.values[i]);
  }
  if (mask.is_active) apply(mask, here.row, here.column, out);
  if (!residual.is_null()) {
    const Floats from = residual.floats(raw_residual);
#pragma unroll
    for (int i = 0; i < kVector; ++i) out.values[i] = __fadd_rn(from.values[i], out.values[i]);
  }
  y.write(at, n, out);
}

}  // namespace

void bias_dropout_add_forward(TensorView y, ConstView x, ConstView bias, ConstView residual,
                              DropoutKey key, Stream stream) {
  expect_shape(x.shape, y.shape, "bias_dropout_add: x");
  if (residual.data != nullptr) {
    expect_shape(residual.shape, y.shape, "bias_dropout_add: residual");
  }
  const int64_t batch = x.size(1);
  const int64_t rows = x.size(0) * batch;
  const int64_t cols = x.size(2);
  if (bias.data != nullptr) expect_shape(bias.shape, {cols}, "bias_dropout_add: bias");
  if (y.numel() == 0) return;
  const Mask mask{.key = key,
                  .threshold = key.keep_threshold(),
                  .scale = key.scale(),
                  .batch = static_cast<uint32_t>(batch),
                  .is_active = key.is_active()};
  const auto [grid, block] = row_grid(rows, cols, kWho);
  bias_dropout_add_kernel<<<grid, block, 0, native(stream)>>>(
      sink_of(y, cols, kWho), source_of(x, cols, kWho), source_of(bias, cols, kWho),
      source_of(residual, cols, kWho), mask, rows, cols);
  MG_CUDA(cudaGetLastError());
}

void dropout_backward(TensorView dx, ConstView dy, DropoutKey key, Stream stream) {
  bias_dropout_add_forward(dx, dy, ConstView{}, ConstView{}, key, stream);
}

}  // namespace megatron::kernels::cuda
