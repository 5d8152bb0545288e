#include "megatron/kernels/gelu_matmul.h"

#include "megatron/kernels/bias_activation.h"
#include "megatron/kernels/dispatch.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/matmul.h"

namespace megatron::kernels {
namespace {

// `x` is [rows, cols] of a dtype.
void expect_matrix(const ConstView& x, int64_t rows, int64_t cols, DType dtype, const char* what) {
  expect_shape(x.shape, {rows, cols}, what);
  expect_dtype(x.dtype, dtype, what);
}

}  // namespace

void gelu_matmul_forward(TensorView y, TensorView pre, ConstView x, ConstView weight,
                         ConstView bias, Stream stream) {
  const int64_t m = y.size(0);
  const int64_t n = y.size(1);
  expect_matrix(x, m, weight.size(1), y.dtype, "gelu_matmul: x");
  expect_matrix(weight, n, weight.size(1), y.dtype, "gelu_matmul: weight");
  if (!pre.is_null()) expect_matrix(pre, m, n, y.dtype, "gelu_matmul: pre");
  if (bias.data != nullptr) {
    expect_shape(bias.shape, {n}, "gelu_matmul: bias");
    expect_dtype(bias.dtype, y.dtype, "gelu_matmul: bias");
  }
  if constexpr (kBuiltWithCuda) {
    if (stream.has_queue() && pre.is_null() &&
        cuda::gelu_matmul_forward(y, x, weight, bias, stream)) {
      return;
    }
  }
  const TensorView sum = pre.is_null() ? y : pre;
  matmul(sum, x, Transpose::kNo, weight, Transpose::kYes, bias, 0.0f, stream);
  bias_activation_forward(y, sum, ConstView{}, Activation::kGeluTanh, stream);
}

void gelu_matmul_backward(TensorView dpre, TensorView dbias, ConstView dz, ConstView weight,
                          ConstView pre, float beta, TensorView workspace, Stream stream) {
  const int64_t m = dpre.size(0);
  const int64_t n = dpre.size(1);
  expect_matrix(dz, m, weight.size(0), dpre.dtype, "gelu_matmul: dz");
  expect_matrix(weight, weight.size(0), n, dpre.dtype, "gelu_matmul: weight");
  expect_matrix(pre, m, n, dpre.dtype, "gelu_matmul: pre");
  if constexpr (kBuiltWithCuda) {
    if (stream.has_queue() && cuda::gelu_matmul_backward(dpre, dz, weight, pre, stream)) {
      if (!dbias.is_null()) sum_rows(dbias, dpre, beta, stream);
      return;
    }
  }
  matmul(dpre, dz, Transpose::kNo, weight, Transpose::kNo, ConstView{}, 0.0f, stream);
  bias_activation_backward(dpre, dbias, dpre, pre, ConstView{}, Activation::kGeluTanh, beta,
                           workspace, stream);
}

}  // namespace megatron::kernels
