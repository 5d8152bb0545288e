#include "megatron/kernels/fp8_transpose.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void fp8_transpose(TensorView y, ConstView x, Stream stream) {
  expect_shape(y.shape, {x.size(1), x.size(0)}, "fp8_transpose: y");
  expect_dtype(y.dtype, x.dtype, "fp8_transpose: y");
  invariant(is_float8(x.dtype), "fp8_transpose: x is in FP8");
  return dispatch<cpu::fp8_transpose, cuda::fp8_transpose>("fp8_transpose", y, x, stream);
}

}  // namespace megatron::kernels
