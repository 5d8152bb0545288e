#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/device/random.h"

// The residual stream and its norm in one pass over memory: the step between two halves of a
// transformer layer. On a GPU, rows of whole 16 bytes and up to 8192 columns take one kernel each
// way; all others take the kernels of dropout.h and norm.h in turn.
namespace megatron::kernels {

// The norm of a row: LayerNorm with a bias, RMSNorm without (norm.h).
struct NormParameters {
  ConstView weight;  // [h]
  ConstView bias;    // [h], or null: RMSNorm
  float weight_offset = 0;
  float epsilon = 0;

  bool is_rms_norm() const { return bias.data == nullptr; }
};

// x = residual + dropout(branch + bias), y = norm(x).
//
//   x           [s, b, h]  out  dtype of residual; may alias residual
//   y           [s, b, h]  out  dtype of the norm's weight
//   mean, rstd  [s * b]    out  fp32, kept for the backward pass; mean is null for RMSNorm
//   branch      [s, b, h]  in   or split-K parts [p, s, b, h] in fp32, which are added in order
//   bias        [h]        in   may be null
//   residual    [s, b, h]  in
//
// fp32, fp16 or bf16. Computes in fp32; y is the norm of x as stored. REQUIRES: parts only if
// residual_norm_adds_parts().
void residual_norm_forward(TensorView x, TensorView y, TensorView mean, TensorView rstd,
                           ConstView branch, ConstView bias, ConstView residual,
                           const NormParameters& norm, DropoutKey key, Stream stream);

// True if residual_norm_forward() can add the split-K parts of a branch for an x of this shape, [s,
// b, h].
bool residual_norm_adds_parts(const Shape& x, int64_t parts, Stream stream);

// dx = dx_past + the gradient of x in norm(x), dbranch = dropout(dx), and sums over rows.
//
//   dx                   [s, b, h]  out  dtype of x: also the gradient of residual
//   dbranch              [s, b, h]  out  any dtype; may be null
//   dbias                [h]        out  bias_beta * dbias + sum of the rows of dbranch, or null
//   dweight, dnorm_bias  [h]        out  norm_beta * old value + sums over rows; may be null
//   dx_past              [s, b, h]  in   dtype of x: gradient of x from other uses; may be null
//   dy                   [s, b, h]  in   dtype of the norm's weight
//   x                    [s, b, h]  in
//   mean, rstd           [s * b]    in   mean null for RMSNorm
//
// Nothing overlaps. Without dbranch, dbias is the sum of the rows of dx, and the key is inactive.
// The order of every sum depends only on the shape. The workspace holds
// residual_norm_backward_workspace_bytes() bytes of undefined content.
struct ResidualNormGradients {
  TensorView dx;
  TensorView dbranch;
  TensorView dbias;
  TensorView dweight;
  TensorView dnorm_bias;
  float bias_beta = 0;
  float norm_beta = 0;
};
void residual_norm_backward(const ResidualNormGradients& out, ConstView dx_past, ConstView dy,
                            ConstView x, ConstView mean, ConstView rstd, const NormParameters& norm,
                            DropoutKey key, TensorView workspace, Stream stream);

// Scratch memory of the backward function for an x of this shape, [s, b, h]; may be 0.
int64_t residual_norm_backward_workspace_bytes(const Shape& x, Stream stream);

namespace cuda {
// Return false, without doing anything, if there is no kernel for these rows or dtypes.
bool residual_norm_forward(TensorView x, TensorView y, TensorView mean, TensorView rstd,
                           ConstView branch, ConstView bias, ConstView residual,
                           const NormParameters& norm, DropoutKey key, Stream stream);
bool residual_norm_backward(const ResidualNormGradients& out, ConstView dx_past, ConstView dy,
                            ConstView x, ConstView mean, ConstView rstd, const NormParameters& norm,
                            DropoutKey key, TensorView workspace, Stream stream);
int64_t residual_norm_backward_workspace_bytes(const Shape& x);
bool residual_norm_adds_parts(const Shape& x, int64_t parts);
}  // namespace cuda

}  // namespace megatron::kernels
