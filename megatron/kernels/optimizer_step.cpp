#include "megatron/kernels/optimizer_step.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void step_sums(TensorView sums, ConstView found, ConstView losses, Stream stream) {
  expect_shape(sums.shape, {kNumStepSums}, "step_sums: sums");
  expect_shape(found.shape, {found.size(0), kNumNormGroups, 2}, "step_sums: found");
  if (stream.is_cpu()) return cpu::step_sums(sums, found, losses, stream);
  if constexpr (kBuiltWithCuda) return cuda::step_sums(sums, found, losses, stream);
  throw_built_without_cuda("step_sums");
}

void decide_step(TensorView state, ConstView sums, const StepRule& rule, Stream stream) {
  expect_shape(state.shape, {kStepStateBytes}, "decide_step: state");
  expect_shape(sums.shape, {kNumStepSums}, "decide_step: sums");
  if (stream.is_cpu()) return cpu::decide_step(state, sums, rule, stream);
  if constexpr (kBuiltWithCuda) return cuda::decide_step(state, sums, rule, stream);
  throw_built_without_cuda("decide_step");
}

void loss_seed(TensorView seed, ConstView state, int64_t num_microbatches, Stream stream) {
  expect_shape(seed.shape, {}, "loss_seed: seed");
  expect_shape(state.shape, {kStepStateBytes}, "loss_seed: state");
  if (stream.is_cpu()) return cpu::loss_seed(seed, state, num_microbatches, stream);
  if constexpr (kBuiltWithCuda) return cuda::loss_seed(seed, state, num_microbatches, stream);
  throw_built_without_cuda("loss_seed");
}

}  // namespace megatron::kernels
