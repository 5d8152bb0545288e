#include "megatron/kernels/residual_norm.h"

#include <algorithm>

#include "megatron/kernels/dispatch.h"
#include "megatron/kernels/dropout.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/norm.h"

namespace megatron::kernels {
namespace {

Shape rows_of(const Shape& x) { return {x[0] * x[1], x[2]}; }
TensorView rows_of(TensorView x) {
  if (!x.is_null()) x.shape = rows_of(x.shape);
  return x;
}
ConstView rows_of(ConstView x) { return {x.data, rows_of(x.shape), x.dtype}; }

void expect_shapes(const Shape& x, const Shape& y, const ConstView& rstd, const NormParameters& n) {
  if (x.rank() != 3) throw ShapeError("residual_norm: x has shape " + x.str() + ", not [s, b, h]");
  expect_shape(y, x, "residual_norm: y");
  expect_shape(rstd.shape, {x[0] * x[1]}, "residual_norm: rstd");
  expect_shape(n.weight.shape, {x[2]}, "residual_norm: weight");
  if (!n.is_rms_norm()) expect_shape(n.bias.shape, {x[2]}, "residual_norm: bias of the norm");
}

}  // namespace

void residual_norm_forward(TensorView x, TensorView y, TensorView mean, TensorView rstd,
                           ConstView branch, ConstView bias, ConstView residual,
                           const NormParameters& norm, DropoutKey key, Stream stream) {
  expect_shapes(x.shape, y.shape, rstd, norm);
  const bool is_in_parts = branch.shape.rank() == 4;
  const Shape whole =
      is_in_parts ? Shape{branch.size(1), branch.size(2), branch.size(3)} : branch.shape;
  expect_shape(whole, x.shape, "residual_norm: branch");
  expect_shape(residual.shape, x.shape, "residual_norm: residual");
  expect_dtype(residual.dtype, x.dtype, "residual_norm: residual");
  if (bias.data != nullptr) expect_shape(bias.shape, {x.size(2)}, "residual_norm: bias");
  if constexpr (kBuiltWithCuda) {
    if (stream.has_queue() &&
        cuda::residual_norm_forward(x, y, mean, rstd, branch, bias, residual, norm, key, stream)) {
      return;
    }
  }
  invariant(!is_in_parts, "residual_norm_adds_parts() was asked for a branch in parts");
  bias_dropout_add_forward(x, branch, bias, residual, key, stream);
  if (norm.is_rms_norm()) {
    rms_norm_forward(rows_of(y), rstd, rows_of(x), norm.weight, norm.weight_offset, norm.epsilon,
                     stream);
  } else {
    layer_norm_forward(rows_of(y), mean, rstd, rows_of(x), norm.weight, norm.bias,
                       norm.weight_offset, norm.epsilon, stream);
  }
}

bool residual_norm_adds_parts(const Shape& x, int64_t parts, Stream stream) {
  if constexpr (kBuiltWithCuda)
    return stream.has_queue() && cuda::residual_norm_adds_parts(x, parts);
  return false;
}

void residual_norm_backward(const ResidualNormGradients& out, ConstView dx_past, ConstView dy,
                            ConstView x, ConstView mean, ConstView rstd, const NormParameters& norm,
                            DropoutKey key, TensorView workspace, Stream stream) {
  expect_shapes(x.shape, dy.shape, rstd, norm);
  expect_shape(out.dx.shape, x.shape, "residual_norm: dx");
  expect_dtype(out.dx.dtype, x.dtype, "residual_norm: dx");
  if (dx_past.data != nullptr) {
    expect_shape(dx_past.shape, x.shape, "residual_norm: dx_past");
    expect_dtype(dx_past.dtype, x.dtype, "residual_norm: dx_past");
  }
  if (!out.dbranch.is_null()) expect_shape(out.dbranch.shape, x.shape, "residual_norm: dbranch");
  if constexpr (kBuiltWithCuda) {
    if (stream.has_queue() && cuda::residual_norm_backward(out, dx_past, dy, x, mean, rstd, norm,
                                                           key, workspace, stream)) {
      return;
    }
  }
  const TensorView dx = rows_of(out.dx);
  if (norm.is_rms_norm()) {
    rms_norm_backward(dx, out.dweight, rows_of(dy), rows_of(x), rstd, norm.weight,
                      norm.weight_offset, out.norm_beta, workspace, stream);
  } else {
    layer_norm_backward(dx, out.dweight, out.dnorm_bias, rows_of(dy), rows_of(x), mean, rstd,
                        norm.weight, norm.weight_offset, out.norm_beta, workspace, stream);
  }
  if (dx_past.data != nullptr) add(out.dx, out.dx, dx_past, 1.0f, stream);
  if (!out.dbranch.is_null()) dropout(out.dbranch, out.dx, key, 0, stream);
  if (!out.dbias.is_null()) {
    sum_rows(out.dbias, rows_of(out.dbranch.is_null() ? out.dx : out.dbranch), out.bias_beta,
             stream);
  }
}

int64_t residual_norm_backward_workspace_bytes(const Shape& x, Stream stream) {
  return stream.is_cpu() ? 0 : cuda::residual_norm_backward_workspace_bytes(x);
}

int64_t cuda::residual_norm_backward_workspace_bytes(const Shape& x) {
  return 3 * std::min(kMaxPartials, x[0] * x[1]) * x[2] * size_of(DType::kFloat32);
}

}  // namespace megatron::kernels
