#include "megatron/kernels/fp8_rows.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void fp8_quantize_rows(TensorView numbers, TensorView scales, ConstView x, Stream stream) {
  constexpr const char* kWho = "fp8_quantize_rows";
  expect_shape(numbers.shape, {x.size(0), x.size(1)}, kWho);
  if (numbers.dtype != DType::kFloat8E5M2) expect_dtype(numbers.dtype, DType::kFloat8E4M3, kWho);
  expect_shape(scales.shape, {x.size(0)}, kWho);
  expect_dtype(scales.dtype, DType::kFloat32, kWho);
  return dispatch<cpu::fp8_quantize_rows, cuda::fp8_quantize_rows>(kWho, numbers, scales, x,
                                                                   stream);
}

}  // namespace megatron::kernels
