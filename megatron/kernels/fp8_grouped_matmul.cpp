#include "megatron/kernels/fp8_grouped_matmul.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void fp8_grouped_matmul(TensorView y, ConstView x, ConstView x_scales, ConstView w,
                        ConstView w_scales, ConstView offsets, Stream stream) {
  constexpr const char* kWho = "fp8_grouped_matmul";
  expect_shape(x.shape, {y.size(0), w.size(2)}, kWho);
  expect_shape(w.shape, {w.size(0), y.size(1), w.size(2)}, kWho);
  expect_dtype(w.dtype, DType::kFloat8E4M3, kWho);
  expect_shape(x_scales.shape, {x.size(0)}, kWho);
  expect_shape(w_scales.shape, {w.size(0)}, kWho);
  expect_shape(offsets.shape, {w.size(0) + 1}, kWho);
  expect_dtype(offsets.dtype, DType::kInt32, kWho);
  if (y.numel() == 0) return;
  dispatch<cpu::fp8_grouped_matmul, cuda::fp8_grouped_matmul>(kWho, y, x, x_scales, w, w_scales,
                                                              offsets, stream);
}

}  // namespace megatron::kernels
