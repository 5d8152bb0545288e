#include "megatron/kernels/matmul.h"

#include <algorithm>
#include <bit>

#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/matmul_plans.h"

namespace megatron::kernels::cuda {
namespace {

// The largest power of two that divides an address or a distance, up to 16 bytes.
int alignment_of(uintptr_t bytes) { return 1 << std::countr_zero(bytes | 16u); }
int alignment_of(const void* address) { return alignment_of(reinterpret_cast<uintptr_t>(address)); }

// True if cuBLASLt fuses the bias before rounding. It accepts only a bias of the result's type and
// ignores its alignment; for 16-bit results it rounds first unless rows suit its fast kernels.
bool fuses_bias(const ConstView& c, const ConstView& a, const ConstView& b, const ConstView& bias,
                float beta) {
  if (bias.dtype != c.dtype || alignment_of(bias.data) < 16) return false;
  if (c.dtype == DType::kFloat32) return true;
  return beta == 0 && has_aligned_rows(a) && has_aligned_rows(b) && has_aligned_rows(c);
}

// c = a' b' + beta * c + bias, which cuBLASLt adds; bias may be null.
void fused_matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b,
                  Transpose transpose_b, ConstView bias, float beta, Stream stream) {
  const MatmulKey key{.m = c.size(0),
                      .n = c.size(1),
                      .k = a.size(transpose_a == Transpose::kNo ? 1 : 0),
                      .in = a.dtype,
                      .out = c.dtype,
                      .transpose_a = transpose_a,
                      .transpose_b = transpose_b,
                      .has_bias = bias.data != nullptr,
                      .has_beta = beta != 0,
                      .allows_tf32 = a.dtype == DType::kFloat32 && stream.options.allows_tf32,
                      .alignment_a = alignment_of(a.data),
                      .alignment_b = alignment_of(b.data),
                      .alignment_c = alignment_of(c.data)};
  const MatmulOperands operands{
      .d = c.data, .a = a.data, .b = b.data, .c = c.data, .bias = bias.data, .beta = beta};
  MatmulPlans& plans = MatmulPlans::of(stream.device);
  MG_CUBLAS(launch(plans.handle(), plans.plan(key, operands, stream), operands,
                   plans.workspace(stream), stream));
}

}  // namespace

bool has_aligned_rows(const ConstView& x) {
  return alignment_of(x.data) == 16 &&
         alignment_of(static_cast<uintptr_t>(x.size(-1) * size_of(x.dtype))) == 16;
}

void matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            ConstView bias, float beta, Stream stream) {
  if (c.numel() == 0) return;
  if (a.numel() == 0) return add_bias(c, nullptr, bias, beta, stream);
  if (bias.data == nullptr || fuses_bias(c, a, b, bias, beta)) {
    return fused_matmul(c, a, transpose_a, b, transpose_b, bias, beta, stream);
  }
  TensorView product{.data = nullptr, .shape = c.shape, .dtype = DType::kFloat32};
  product.data = MatmulPlans::of(stream.device).results(stream, product.bytes());
  fused_matmul(product, a, transpose_a, b, transpose_b, ConstView{}, 0, stream);
  add_bias(c, static_cast<const float*>(product.data), bias, beta, stream);
}

int64_t num_k_splits(int64_t m, int64_t n, int64_t k, DType dtype, Stream stream) {
  constexpr int64_t kTile = 64;    // columns of a cuBLASLt output tile
  constexpr int64_t kDepth = 256;  // minimum depth of a part
  constexpr int64_t kMinUsefulSplits =
      3;  // two parts gain nothing (docs/performance/generation.md)
  if (m > kMaxSplitKRows || size_of(dtype) != 2) return 1;
  const int64_t tiles = (n + kTile - 1) / kTile;
  int64_t parts = std::min({kMaxKSplits, multiprocessors(stream.device) / tiles, k / kDepth});
  while (parts > 1 && k % (parts * kTile) != 0) --parts;
  return parts < kMinUsefulSplits ? 1 : parts;
}

void matmul_split_k(TensorView parts, ConstView a, ConstView b, Stream stream) {
  const MatmulKey key{.m = parts.size(1),
                      .n = parts.size(2),
                      .k = a.size(1),
                      .depth_parts = parts.size(0),
                      .in = a.dtype,
                      .in_b = a.dtype,
                      .out = parts.dtype,
                      .transpose_b = Transpose::kYes,
                      .alignment_a = alignment_of(a.data),
                      .alignment_b = alignment_of(b.data),
                      .alignment_c = alignment_of(parts.data)};
  const MatmulOperands operands{.d = parts.data, .a = a.data, .b = b.data, .c = parts.data};
  MatmulPlans& plans = MatmulPlans::of(stream.device);
  MG_CUBLAS(launch(plans.handle(), plans.plan(key, operands, stream), operands,
                   plans.workspace(stream), stream));
}

}  // namespace megatron::kernels::cuda
