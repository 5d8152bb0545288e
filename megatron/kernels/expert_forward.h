#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/kernels/activation.h"

// The experts of few tokens without a gradient, as in a decode step, on a GPU.
namespace megatron::kernels {

// The matrices of E experts of a layer, 16-bit, and their biases, which may be null.
struct ExpertLayers {
  ConstView fc1;       // [E, f, h], [E, 2f, h] if the activation is gated
  ConstView fc1_bias;  // [E, f], or [E, 2f]
  ConstView fc2;       // [E, h, f]
  ConstView fc2_bias;  // [E, h]
  Activation activation = Activation::kSwiglu;
  int64_t first_expert = 0;   // the id of the first of the E experts
  bool weighs_input = false;  // p is a factor of x instead
};

// Most slots (choices of all tokens) that expert_forward() takes: with 512 of 64 experts grouped
// products are quicker (docs/performance/experts.md).
inline constexpr int64_t kMaxForwardSlots = 256;

// y[t] = sum over the experts e of token t of fc2_e(p act(fc1_e(x[t]) + fc1_bias_e)) + p fc2_bias_e
//
//   y        [T, h]     out  dtype of x
//   inside   [T k, f]   out  dtype of x: p act(..) of each slot t k + j; undefined for a slot
//                            without one of the experts
//   x        [T, h]     in   fp16 | bf16
//   ids      [T, k]     in   int32: experts of the token; one that is none of the E adds nothing
//   weights  [T, k]     in   fp32: p
//
// Two kernels, which read each chosen expert's matrices once, at the speed of memory, for up to 32
// of its tokens: the sizes of the groups stay on the device. Sums in fp32; outputs of fc1 and
// `inside` are rounded, and y once. The order of sums depends only on the ids.
// REQUIRES: has_expert_forward().
void expert_forward(TensorView y, TensorView inside, ConstView x, ConstView ids, ConstView weights,
                    const ExpertLayers& layers, Stream stream);
// True on a GPU, for at most kMaxForwardSlots slots and 512 experts, if x is 16-bit, and h and f
// are multiples of 32. A CPU has no such kernel.
bool has_expert_forward(ConstView x, ConstView ids, const ExpertLayers& layers, Stream stream);

namespace cuda {
decltype(kernels::expert_forward) expert_forward;
decltype(kernels::has_expert_forward) has_expert_forward;
}  // namespace cuda

}  // namespace megatron::kernels
