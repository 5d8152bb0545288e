#include "megatron/kernels/matmul.h"

#include "megatron/kernels/cpu/few_rows.h"
#include "megatron/kernels/cpu/gemm.h"
#include "megatron/kernels/cpu/onednn_matmul.h"

namespace megatron::kernels::cpu {
namespace {

// c = beta * c + bias: a product without terms.
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

}  // namespace

void matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            ConstView bias, float beta, Stream stream) {
  const int64_t m = c.size(0);
  const int64_t n = c.size(1);
  const int64_t k = a.size(transpose_a == Transpose::kNo ? 1 : 0);
  if (m == 0 || n == 0) return;
  if (k == 0) return add_nothing(c, bias, beta);
  if (m <= kMaxFewRows && transpose_a == Transpose::kNo && transpose_b == Transpose::kYes) {
    return few_rows_matmul(c, a, b, bias, beta, stream);
  }
  if (a.dtype == DType::kBFloat16 && has_fast_bf16_products()) {
    return onednn_matmul(c, a, transpose_a, b, transpose_b, bias, beta, stream);
  }
  gemm(c, a, transpose_a, b, transpose_b, bias, beta, stream);
}

}  // namespace megatron::kernels::cpu
