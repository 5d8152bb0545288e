#include "megatron/kernels/gelu_matmul.h"

#include "megatron/kernels/cuda/matmul_plans.h"
#include "megatron/kernels/elementwise.h"

namespace megatron::kernels::cuda {
namespace {

// Only bf16: cuBLASLt may take tanh from the hardware, whose 11 bits fp16 and fp32 would show, and
// rounds the sum over the rows to the type of the product, which overflows in fp16.
template <class... Matrices>
bool suits(const ConstView& a, const Matrices&... others) {
  const auto fits = [](const ConstView& x) {
    return x.dtype == DType::kBFloat16 && x.numel() > 0 && has_aligned_rows(x);
  };
  return fits(a) && (fits(ConstView(others)) && ...);
}

// False when cuBLASLt knows no algorithm.
bool multiply(const MatmulKey& key, const MatmulOperands& operands, Stream stream) {
  MatmulPlans& plans = MatmulPlans::of(stream.device);
  const auto plan = plans.find(key, operands, stream);
  if (!plan) return false;
  MG_CUBLAS(launch(plans.handle(), *plan, operands, plans.workspace(stream), stream));
  return true;
}

}  // namespace

bool gelu_matmul_forward(TensorView y, TensorView pre, ConstView x, ConstView weight,
                         ConstView bias, Stream stream) {
  if (!suits(x, weight, y)) return false;
  if (!pre.is_null() && !has_aligned_rows(pre)) return false;
  if (bias.data != nullptr && !has_aligned_rows(bias)) return false;
  const MatmulKey key{.m = y.size(0),
                      .n = y.size(1),
                      .k = x.size(1),
                      .in = x.dtype,
                      .out = y.dtype,
                      .transpose_b = Transpose::kYes,
                      .epilogue = pre.is_null() ? Epilogue::kGelu : Epilogue::kGeluKept,
                      .has_bias = bias.data != nullptr};
  return multiply(key,
                  {.d = y.data, .a = x.data, .b = weight.data, .bias = bias.data, .pre = pre.data},
                  stream);
}

bool gelu_matmul_backward(TensorView dpre, TensorView dbias, ConstView dz, ConstView weight,
                          ConstView pre, float beta, Stream stream) {
  if (!suits(dz, weight, pre, dpre)) return false;
  const int64_t n = dpre.size(1);
  TensorView sums{.data = nullptr, .shape = {n}, .dtype = dpre.dtype};
  if (!dbias.is_null()) sums.data = MatmulPlans::of(stream.device).results(stream, sums.bytes());
  const MatmulKey key{.m = dpre.size(0),
                      .n = n,
                      .k = dz.size(1),
                      .in = dz.dtype,
                      .out = dpre.dtype,
                      .epilogue = Epilogue::kGeluGradient,
                      .has_bias = !dbias.is_null()};
  const MatmulOperands operands{.d = dpre.data,
                                .a = dz.data,
                                .b = weight.data,
                                .pre = const_cast<void*>(pre.data),  // which is only read
                                .bias_gradient = sums.data};
  if (!multiply(key, operands, stream)) return false;
  if (dbias.is_null()) return true;
  if (beta == 0) {
    cast(dbias, sums, stream);
  } else {
    add(dbias, sums, dbias, beta, stream);
  }
  return true;
}

}  // namespace megatron::kernels::cuda
