#include "megatron/kernels/fp8_matmul.h"

#include "megatron/core/error.h"
#include "megatron/kernels/cuda/matmul_plans.h"

namespace megatron::kernels::cuda {
namespace {

// cuBLASLt reads numbers, and the inverses of scales, at multiples of 16 bytes.
void expect_aligned(const Fp8Factor& factor, const char* what, int64_t rows_unit) {
  const ConstView& x = factor.matrix;
  if (x.size(0) % rows_unit == 0 && x.size(1) % 16 == 0 && has_aligned_rows(x) &&
      reinterpret_cast<uintptr_t>(factor.inverse.data) % 16 == 0) {
    return;
  }
  throw ShapeError(std::string("fp8_matmul: ") + what + " " + x.shape.str() +
                   " must have a multiple of " + std::to_string(rows_unit) +
                   " rows and of 16 columns and start at a multiple of 16 bytes, and so must the "
                   "inverses of its scales");
}

void launch_product(TensorView c, const Fp8Factor& a, const Fp8Factor& b, ConstView bias,
                    float beta, Stream stream) {
  // cuBLASLt reads FP8 factors only along the summed dimension: a as stored, b transposed.
  const MatmulKey key{.m = c.size(0),
                      .n = c.size(1),
                      .k = a.matrix.size(1),
                      .in = a.matrix.dtype,
                      .in_b = b.matrix.dtype,
                      .out = c.dtype,
                      .transpose_b = Transpose::kYes,
                      .has_bias = bias.data != nullptr,
                      .has_beta = beta != 0,
                      .blocks_a = a.blocks,
                      .blocks_b = b.blocks};
  const MatmulOperands operands{.d = c.data,
                                .a = a.matrix.data,
                                .b = b.matrix.data,
                                .c = c.data,
                                .bias = bias.data,
                                .beta = beta,
                                .inverse_a = a.inverse.as<float>(),
                                .inverse_b = b.inverse.as<float>()};
  MatmulPlans& plans = MatmulPlans::of(stream.device);
  if (a.blocks != Fp8Blocks::kWhole && !plans.find(key, operands, stream)) {
    throw Unsupported("fp8_matmul: cuBLASLt has no algorithm for " + text_of(key) +
                      "; scales of rows or blocks need a GPU of compute capability 9.0, so use "
                      "another --fp8-recipe, or --inference-weights model");
  }
  MG_CUBLAS(launch(plans.handle(), plans.plan(key, operands, stream), operands,
                   plans.workspace(stream), stream));
}

}  // namespace

void fp8_matmul(TensorView c, const Fp8Factor& a, const Fp8Factor& b, ConstView bias, float beta,
                Stream stream) {
  if (c.numel() == 0) return;
  if (a.matrix.numel() == 0) return add_bias(c, nullptr, bias, beta, stream);
  expect_aligned(a, "a", a.blocks == Fp8Blocks::kRow ? 1 : 16);
  expect_aligned(b, "b", 16);
  // cuBLASLt adds a bias of the result's 16-bit type, if both are aligned as its kernels need.
  const bool fuses_bias =
      bias.data == nullptr ||
      (bias.dtype == c.dtype && beta == 0 && has_aligned_rows(bias) && c.dtype != DType::kFloat32);
  if (fuses_bias && has_aligned_rows(c)) return launch_product(c, a, b, bias, beta, stream);
  TensorView product{.data = nullptr, .shape = c.shape, .dtype = DType::kFloat32};
  product.data = MatmulPlans::of(stream.device).results(stream, product.bytes());
  launch_product(product, a, b, ConstView{}, 0, stream);
  add_bias(c, static_cast<const float*>(product.data), bias, beta, stream);
}

}  // namespace megatron::kernels::cuda
