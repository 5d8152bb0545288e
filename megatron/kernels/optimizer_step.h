#pragma once

#include <cstdint>

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/kernels/optimizer_rule.h"

// What lies between the gradients of an iteration and its update, a handful of numbers that never
// leave the device: sums over the gradients become a decision (skip, unscale, clip), which the
// update kernels read where it lies.
namespace megatron::kernels {

// The groups of the ranges over which the gradients of a buffer are measured.
inline constexpr int32_t kCountedInNorm = 0;
inline constexpr int32_t kNotCountedInNorm = 1;
inline constexpr int32_t kPaddingInNorm = 2;
inline constexpr int64_t kNumNormGroups = 3;

// Where the sums of a step stand.
inline constexpr int64_t kSquares = 0;       // of what counts in the norm
inline constexpr int64_t kZeros = 1;         // elements that are 0, of what counts
inline constexpr int64_t kNumNotFinite = 2;  // above 0: some element is infinite or not a number
inline constexpr int64_t kNumStepSums = 3;

// A StepState in device memory is a view of so many bytes (uint8).
inline constexpr int64_t kStepStateBytes = sizeof(StepState);

// Adds up what squares_and_zeros found in every buffer.
//   sums    [kNumStepSums]                out  fp64; to be summed over the ranks of the model next
//   found   [buffers, kNumNormGroups, 2]  in   fp64: squares, zeros
//   losses  [k]  in  fp32: one that is not a number counts as not finite; null: none is looked at
void step_sums(TensorView sums, ConstView found, ConstView losses, Stream stream);

// decide_step of optimizer_rule.h.
//   state  [kStepStateBytes]  io  a StepState
//   sums   [kNumStepSums]     in  fp64
void decide_step(TensorView state, ConstView sums, const StepRule& rule, Stream stream);

// seed = loss scale / num_microbatches: the gradient of the loss of each microbatch.
//   seed   []                 out  fp32
//   state  [kStepStateBytes]  in   a StepState
void loss_seed(TensorView seed, ConstView state, int64_t num_microbatches, Stream stream);

namespace cpu {
void step_sums(TensorView sums, ConstView found, ConstView losses, Stream stream);
void decide_step(TensorView state, ConstView sums, const StepRule& rule, Stream stream);
void loss_seed(TensorView seed, ConstView state, int64_t num_microbatches, Stream stream);
}  // namespace cpu

namespace cuda {
void step_sums(TensorView sums, ConstView found, ConstView losses, Stream stream);
void decide_step(TensorView state, ConstView sums, const StepRule& rule, Stream stream);
void loss_seed(TensorView seed, ConstView state, int64_t num_microbatches, Stream stream);
}  // namespace cuda

}  // namespace megatron::kernels
