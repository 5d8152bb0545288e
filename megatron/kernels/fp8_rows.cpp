#include "megatron/kernels/fp8_rows.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void Fp8RowsView::expect_valid(const Shape& shape, const char* who) const {
  expect_shape(numbers.shape, shape, who);
  if (numbers.dtype != DType::kFloat8E5M2) expect_dtype(numbers.dtype, DType::kFloat8E4M3, who);
  expect_shape(scales.shape, {shape[0]}, who);
  expect_dtype(scales.dtype, DType::kFloat32, who);
}

void fp8_quantize_rows(TensorView numbers, TensorView scales, ConstView x, Stream stream) {
  constexpr const char* kWho = "fp8_quantize_rows";
  Fp8RowsView{numbers, scales}.expect_valid({x.size(0), x.size(1)}, kWho);
  return dispatch<cpu::fp8_quantize_rows, cuda::fp8_quantize_rows>(kWho, numbers, scales, x,
                                                                   stream);
}

}  // namespace megatron::kernels
