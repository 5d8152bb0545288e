#pragma once

#include <cstdint>

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/kernels/optimizer_rule.h"

// The few numbers between the gradients of an iteration and its update, which never leave the
// device: sums over the gradients become a decision (skip, unscale, clip), which the update kernels
// read from device memory.
namespace megatron::kernels {

// Groups of ranges for measuring the gradients of a buffer.
inline constexpr int32_t kCountedInNorm = 0;
inline constexpr int32_t kNotCountedInNorm = 1;
inline constexpr int32_t kPaddingInNorm = 2;
inline constexpr int64_t kNumNormGroups = 3;

// Positions of a step's sums.
inline constexpr int64_t kSquares = 0;       // of elements that count in the norm
inline constexpr int64_t kZeros = 1;         // number of zeros among those
inline constexpr int64_t kNumNotFinite = 2;  // above 0: some element is infinite or NaN
inline constexpr int64_t kNumStepSums = 3;

// The size of a StepState in device memory, as a uint8 view.
inline constexpr int64_t kStepStateBytes = sizeof(StepState);

// Adds the results of squares_and_zeros for all buffers.
//   sums    [kNumStepSums]                out  fp64; the caller sums it over the ranks of the model
//   found   [buffers, kNumNormGroups, 2]  in   fp64: squares, zeros
//   losses  [k]  in  fp32: a loss that is NaN counts as not finite; null: no losses are checked
void step_sums(TensorView sums, ConstView found, ConstView losses, Stream stream);

// Runs decide_step of optimizer_rule.h.
//   state  [kStepStateBytes]  io  a StepState
//   sums   [kNumStepSums]     in  fp64
void decide_step(TensorView state, ConstView sums, const StepRule& rule, Stream stream);

// Sets StepState::gradient_weight to num_microbatches / weight: microbatches are weighted by their
// number of counted tokens instead of equally. 1 if the weight is 0.
//   state   [kStepStateBytes]  io  a StepState
//   weight  [1]                in  fp32: the sum of their weights
void weigh_gradients(TensorView state, ConstView weight, int64_t num_microbatches, Stream stream);

// seed = loss scale / num_microbatches: the gradient of the loss of each microbatch.
//   seed   []                 out  fp32
//   state  [kStepStateBytes]  in   a StepState
void loss_seed(TensorView seed, ConstView state, int64_t num_microbatches, Stream stream);

namespace cpu {
decltype(kernels::step_sums) step_sums;
void decide_step(TensorView state, ConstView sums, const StepRule& rule, Stream stream);
decltype(kernels::weigh_gradients) weigh_gradients;
decltype(kernels::loss_seed) loss_seed;
}  // namespace cpu

namespace cuda {
decltype(kernels::step_sums) step_sums;
void decide_step(TensorView state, ConstView sums, const StepRule& rule, Stream stream);
decltype(kernels::weigh_gradients) weigh_gradients;
decltype(kernels::loss_seed) loss_seed;
}  // namespace cuda

}  // namespace megatron::kernels
