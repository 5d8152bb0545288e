#include "megatron/kernels/grouped_matmul.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
namespace {

void expect_offsets(const ConstView& offsets, int64_t groups) {
  expect_shape(offsets.shape, {groups + 1}, "grouped_matmul: offsets");
  expect_dtype(offsets.dtype, DType::kInt32, "grouped_matmul: offsets");
}

}  // namespace

void grouped_matmul(TensorView y, ConstView x, ConstView w, Transpose transpose_w,
                    ConstView offsets, Stream stream) {
  const int64_t n = y.size(1);
  const int64_t k = x.size(1);
  expect_shape(x.shape, {y.size(0), k}, "grouped_matmul: x");
  expect_shape(w.shape,
               transpose_w == Transpose::kYes ? Shape{w.size(0), n, k} : Shape{w.size(0), k, n},
               "grouped_matmul: w");
  expect_dtype(w.dtype, x.dtype, "grouped_matmul: w");
  expect_dtype(y.dtype, x.dtype, "grouped_matmul: y");
  expect_offsets(offsets, w.size(0));
  if (y.numel() == 0) return;
  dispatch<cpu::grouped_matmul, cuda::grouped_matmul>("grouped_matmul", y, x, w, transpose_w,
                                                      offsets, stream);
}

void grouped_matmul_gradient(TensorView dw, ConstView dy, ConstView x, ConstView offsets,
                             float beta, Stream stream) {
  expect_shape(dy.shape, {x.size(0), dw.size(1)}, "grouped_matmul_gradient: dy");
  expect_shape(x.shape, {x.size(0), dw.size(2)}, "grouped_matmul_gradient: x");
  expect_dtype(dy.dtype, x.dtype, "grouped_matmul_gradient: dy");
  if (dw.dtype != DType::kFloat32) {
    expect_dtype(dw.dtype, x.dtype, "grouped_matmul_gradient: dw");
  }
  expect_offsets(offsets, dw.size(0));
  if (dw.numel() == 0) return;
  dispatch<cpu::grouped_matmul_gradient, cuda::grouped_matmul_gradient>(
      "grouped_matmul_gradient", dw, dy, x, offsets, beta, stream);
}

}  // namespace megatron::kernels
