#include "megatron/kernels/double_matmul.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void double_matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b,
                   Transpose transpose_b, ConstView bias, float beta, Stream stream) {
  const int64_t m = c.size(0);
  const int64_t n = c.size(1);
  const int64_t k = a.size(transpose_a == Transpose::kNo ? 1 : 0);
  expect_shape(a.shape, transpose_a == Transpose::kNo ? Shape{m, k} : Shape{k, m},
               "double_matmul: a");
  expect_shape(b.shape, transpose_b == Transpose::kNo ? Shape{k, n} : Shape{n, k},
               "double_matmul: b");
  if (bias.data != nullptr) expect_shape(bias.shape, {n}, "double_matmul: bias");
  dispatch<cpu::double_matmul, cuda::double_matmul>("double_matmul", c, a, transpose_a, b,
                                                    transpose_b, bias, beta, stream);
}

}  // namespace megatron::kernels
