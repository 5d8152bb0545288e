#include "megatron/kernels/gelu_matmul.h"

#include "megatron/kernels/cuda/matmul_plans.h"

namespace megatron::kernels::cuda {
namespace {

// Only bf16: cuBLASLt may use the hardware's tanh, whose 11 bits would show in fp16 and fp32.
template <class... Matrices>
bool suits(const Matrices&... matrices) {
  const auto fits = [](const ConstView& x) {
    return x.dtype == DType::kBFloat16 && x.numel() > 0 && has_aligned_rows(x);
  };
  return (fits(ConstView(matrices)) && ...);
}

// Returns false if cuBLASLt has no such product.
bool launched(const MatmulKey& key, const MatmulOperands& operands, Stream stream) {
  MatmulPlans& plans = MatmulPlans::of(stream.device);
  const auto plan = plans.find(key, operands, stream);
  if (!plan) return false;
  MG_CUBLAS(launch(plans.handle(), *plan, operands, plans.workspace(stream), stream));
  return true;
}

}  // namespace

bool gelu_matmul_forward(TensorView y, ConstView x, ConstView weight, ConstView bias,
                         Stream stream) {
  if (!suits(x, weight, y)) return false;
  if (bias.data != nullptr && !has_aligned_rows(bias)) return false;
  const MatmulKey key{.m = y.size(0),
                      .n = y.size(1),
                      .k = x.size(1),
                      .in = x.dtype,
                      .out = y.dtype,
                      .transpose_b = Transpose::kYes,
                      .epilogue = Epilogue::kGelu,
                      .has_bias = bias.data != nullptr};
  const MatmulOperands operands{.d = y.data, .a = x.data, .b = weight.data, .bias = bias.data};
  return launched(key, operands, stream);
}

bool gelu_matmul_backward(TensorView dpre, ConstView dz, ConstView weight, ConstView pre,
                          Stream stream) {
  if (dz.size(1) < kMinGeluGradientTerms || !suits(dpre, dz, weight, pre)) return false;
  const MatmulKey key{.m = dpre.size(0),
                      .n = dpre.size(1),
                      .k = dz.size(1),
                      .in = dz.dtype,
                      .out = dpre.dtype,
                      .epilogue = Epilogue::kGeluGradient};
  const MatmulOperands operands{.d = dpre.data, .a = dz.data, .b = weight.data, .pre = pre.data};
  return launched(key, operands, stream);
}

}  // namespace megatron::kernels::cuda
