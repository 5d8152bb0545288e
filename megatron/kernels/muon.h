#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/kernels/optimizer_step.h"

// The elementwise parts of a step of Muon (optim/muon.h) for one matrix of n elements. `state` is a
// StepState, as for adam.
namespace megatron::kernels {

// The running mean of gradients, and the direction that is made orthogonal:
//
//   g = grad_scale * grad;   buf = momentum buf + (1 - momentum) g
//   direction = buf, or with Nesterov's look ahead momentum buf + (1 - momentum) g
//
//   direction  [n]  out  fp32; after a skipped step the unchanged buf
//   buffer     [n]  io   fp32: buf
//   grad       [n]  in   fp32 | fp16 | bf16
void muon_momentum(TensorView direction, TensorView buffer, ConstView grad, double momentum,
                   bool is_nesterov, ConstView state, Stream stream);

// y = x / max(|x|, 1e-7), with the Frobenius norm.
//   y         [n]     out  fp32 | fp16 | bf16
//   x         [n]     in   fp32
//   measured  [1, 2]  in   fp64: the result of squares_and_zeros for x
void muon_normalize(TensorView y, ConstView x, ConstView measured, Stream stream);

// w -= lr (direction + weight_decay w).
//   model, main  [n]  as for adam, with fp32 main parameters
//   direction    [n]  in  fp32
void muon_update(TensorView model, TensorView main, ConstView direction, double lr,
                 double weight_decay, ConstView state, Stream stream);

namespace cpu {
decltype(kernels::muon_momentum) muon_momentum;
decltype(kernels::muon_normalize) muon_normalize;
decltype(kernels::muon_update) muon_update;
}  // namespace cpu

namespace cuda {
decltype(kernels::muon_momentum) muon_momentum;
decltype(kernels::muon_normalize) muon_normalize;
decltype(kernels::muon_update) muon_update;
}  // namespace cuda

// The smallest norm that muon_normalize divides by.
inline constexpr double kSmallestMuonNorm = 1e-7;

}  // namespace megatron::kernels
