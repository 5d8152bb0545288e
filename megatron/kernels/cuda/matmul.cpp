#include "megatron/kernels/matmul.h"

#include <bit>

#include "megatron/kernels/cuda/matmul_plans.h"

namespace megatron::kernels::cuda {
namespace {

// The largest power of two, up to 16, that divides an address: bytes.
int alignment_of(const void* address) {
  return 1 << std::countr_zero(reinterpret_cast<uintptr_t>(address) | 16u);
}

}  // namespace

void matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            ConstView bias, float beta, Stream stream) {
  if (c.numel() == 0) return;
  if (a.numel() == 0) return add_bias(c, bias, beta, stream);
  bool has_bias = bias.data != nullptr;
  // cuBLASLt adds a bias of the result's type only, and is told nothing of its alignment.
  if (has_bias && (bias.dtype != c.dtype || alignment_of(bias.data) < 16)) {
    add_bias(c, bias, beta, stream);
    beta = 1;
    has_bias = false;
  }

  MatmulPlans& plans = MatmulPlans::of(stream.device);
  MatmulPlan plan =  // a copy, which takes the bias of this call
      plans.plan({.m = c.size(0),
                  .n = c.size(1),
                  .k = a.size(transpose_a == Transpose::kNo ? 1 : 0),
                  .in = a.dtype,
                  .out = c.dtype,
                  .transpose_a = transpose_a,
                  .transpose_b = transpose_b,
                  .has_bias = has_bias,
                  .has_beta = beta != 0,
                  .allows_tf32 = a.dtype == DType::kFloat32 && stream.options.allows_tf32,
                  .alignment_a = alignment_of(a.data),
                  .alignment_b = alignment_of(b.data),
                  .alignment_c = alignment_of(c.data)});
  if (has_bias) {
    MG_CUBLAS(cublasLtMatmulDescSetAttribute(&plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                             &bias.data, sizeof(bias.data)));
  }
  const float alpha = 1;
  MG_CUBLAS(cublasLtMatmul(plans.handle(), &plan.description, &alpha, b.data, &plan.left, a.data,
                           &plan.right, &beta, c.data, &plan.result, c.data, &plan.result,
                           &plan.algorithm, plans.workspace(stream), MatmulPlans::kWorkspaceBytes,
                           static_cast<cudaStream_t>(stream.native)));
}

}  // namespace megatron::kernels::cuda
