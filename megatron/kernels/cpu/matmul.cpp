#include "megatron/kernels/matmul.h"

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/cpu/onednn_matmul.h"
#include "megatron/kernels/cpu/workspace.h"
#include "megatron/kernels/elementwise.h"

namespace megatron::kernels::cpu {
namespace {

// c = beta * c + bias: what is left of a product over no terms.
void add_nothing(TensorView c, ConstView bias, float beta) {
  const int64_t n = c.size(1);
  dispatch_floating(c.dtype, "matmul", [&]<class C>() {
    const auto fill_rows = [&]<class B>(const B* row) {
      C* out = c.as<C>();
      for (int64_t i = 0; i < c.numel(); ++i) {
        const float old = beta == 0 ? 0 : beta * static_cast<float>(out[i]);
        out[i] = C(old + (row == nullptr ? 0 : static_cast<float>(row[i % n])));
      }
    };
    if (bias.data == nullptr) return fill_rows(static_cast<const float*>(nullptr));
    dispatch_floating(bias.dtype, "matmul", [&]<class B>() { fill_rows(bias.as<B>()); });
  });
}

// A copy of `x` in fp32, in `workspace`.
TensorView widened(ConstView x, const Workspace& workspace, Stream stream) {
  const TensorView wide{workspace.data(), x.shape, DType::kFloat32};
  cast(wide, x, stream);
  return wide;
}

int64_t fp32_bytes(ConstView x) { return x.data == nullptr ? 0 : 4 * x.numel(); }

void matmul_through_fp32(TensorView c, ConstView a, Transpose transpose_a, ConstView b,
                         Transpose transpose_b, ConstView bias, float beta, Stream stream) {
  const Workspace a32(fp32_bytes(a), stream);
  const Workspace b32(fp32_bytes(b), stream);
  const Workspace c32(fp32_bytes(c), stream);
  const Workspace bias32(fp32_bytes(bias), stream);
  const TensorView sum =
      c.dtype == DType::kFloat32 ? c : TensorView{c32.data(), c.shape, DType::kFloat32};
  if (beta != 0 && c.dtype != DType::kFloat32) cast(sum, c, stream);
  const ConstView wide_bias = bias.data == nullptr ? bias : widened(bias, bias32, stream);
  onednn_matmul(sum, widened(a, a32, stream), transpose_a, widened(b, b32, stream), transpose_b,
                wide_bias, beta, stream);
  if (c.dtype != DType::kFloat32) cast(c, sum, stream);
}

}  // namespace

void matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            ConstView bias, float beta, Stream stream) {
  const int64_t m = c.size(0);
  const int64_t n = c.size(1);
  const int64_t k = a.size(transpose_a == Transpose::kNo ? 1 : 0);
  expect_shape(a.shape, transpose_a == Transpose::kNo ? Shape{m, k} : Shape{k, m}, "matmul: a");
  expect_shape(b.shape, transpose_b == Transpose::kNo ? Shape{k, n} : Shape{n, k}, "matmul: b");
  expect_dtype(b.dtype, a.dtype, "matmul: b");
  if (c.dtype != DType::kFloat32) expect_dtype(c.dtype, a.dtype, "matmul: c");
  if (bias.data != nullptr) {
    expect_shape(bias.shape, {n}, "matmul: bias");
    expect_dtype(bias.dtype, a.dtype, "matmul: bias");
  }

  if (m == 0 || n == 0) return;
  if (k == 0) return add_nothing(c, bias, beta);
  if (a.dtype == DType::kFloat16) {
    return matmul_through_fp32(c, a, transpose_a, b, transpose_b, bias, beta, stream);
  }
  onednn_matmul(c, a, transpose_a, b, transpose_b, bias, beta, stream);
}

}  // namespace megatron::kernels::cpu
