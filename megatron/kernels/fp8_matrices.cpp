#include "megatron/kernels/fp8_matrices.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void fp8_quantize_matrices(TensorView rows, TensorView columns, TensorView scales, ConstView w,
                           Stream stream) {
  constexpr const char* kWho = "fp8_quantize_matrices";
  expect_shape(rows.shape, w.shape, kWho);
  expect_dtype(rows.dtype, DType::kFloat8E4M3, kWho);
  expect_shape(columns.shape, {w.size(0), w.size(2), w.size(1)}, kWho);
  expect_dtype(columns.dtype, DType::kFloat8E4M3, kWho);
  expect_shape(scales.shape, {w.size(0)}, kWho);
  if (w.numel() == 0) return;
  dispatch<cpu::fp8_quantize_matrices, cuda::fp8_quantize_matrices>(kWho, rows, columns, scales, w,
                                                                    stream);
}

}  // namespace megatron::kernels
