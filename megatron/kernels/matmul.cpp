#include "megatron/kernels/matmul.h"

#include "megatron/kernels/cpu/gemm.h"
#include "megatron/kernels/cpu/workspace.h"
#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
namespace {

void expect_matmul_inputs(const TensorView& c, const ConstView& a, Transpose transpose_a,
                          const ConstView& b, Transpose transpose_b, const ConstView& bias) {
  const int64_t m = c.size(0);
  const int64_t n = c.size(1);
  const int64_t k = a.size(transpose_a == Transpose::kNo ? 1 : 0);
  expect_shape(a.shape, transpose_a == Transpose::kNo ? Shape{m, k} : Shape{k, m}, "matmul: a");
  expect_shape(b.shape, transpose_b == Transpose::kNo ? Shape{k, n} : Shape{n, k}, "matmul: b");
  expect_dtype(b.dtype, a.dtype, "matmul: b");
  if (c.dtype != DType::kFloat32) expect_dtype(c.dtype, a.dtype, "matmul: c");
  if (bias.data == nullptr) return;
  expect_shape(bias.shape, {n}, "matmul: bias");
  expect_dtype(bias.dtype, a.dtype, "matmul: bias");
}

}  // namespace

void matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            ConstView bias, float beta, Stream stream) {
  expect_matmul_inputs(c, a, transpose_a, b, transpose_b, bias);
  if (stream.is_dry()) {
    if (stream.is_cpu()) const cpu::Scratch scratch(cpu::gemm_workspace_bytes(c.dtype), stream);
    return;
  }
  return dispatch<cpu::matmul, cuda::matmul>("matmul", c, a, transpose_a, b, transpose_b, bias,
                                             beta, stream);
}

int64_t num_k_splits(int64_t m, int64_t n, int64_t k, DType dtype, Stream stream) {
  if constexpr (kBuiltWithCuda) {
    if (stream.has_queue()) return cuda::num_k_splits(m, n, k, dtype, stream);
  }
  return 1;
}

void matmul_split_k(TensorView parts, ConstView a, ConstView b, Stream stream) {
  const int64_t k = a.size(1);
  expect_shape(b.shape, {parts.size(2), k}, "matmul_split_k: b");
  expect_shape(a.shape, {parts.size(1), k}, "matmul_split_k: a");
  expect_dtype(b.dtype, a.dtype, "matmul_split_k: b");
  expect_dtype(parts.dtype, DType::kFloat32, "matmul_split_k: parts");
  if constexpr (kBuiltWithCuda) return cuda::matmul_split_k(parts, a, b, stream);
  throw_built_without_cuda("matmul_split_k");
}

}  // namespace megatron::kernels
