#include "megatron/kernels/optimizer_step.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void step_sums(TensorView sums, ConstView found, ConstView losses, Stream stream) {
  expect_shape(sums.shape, {kNumStepSums}, "step_sums: sums");
  expect_shape(found.shape, {found.size(0), kNumNormGroups, 2}, "step_sums: found");
  return dispatch<cpu::step_sums, cuda::step_sums>("step_sums", sums, found, losses, stream);
}

void decide_step(TensorView state, ConstView sums, const StepRule& rule, Stream stream) {
  expect_shape(state.shape, {kStepStateBytes}, "decide_step: state");
  expect_shape(sums.shape, {kNumStepSums}, "decide_step: sums");
  return dispatch<cpu::decide_step, cuda::decide_step>("decide_step", state, sums, rule, stream);
}

void weigh_gradients(TensorView state, ConstView weight, int64_t num_microbatches, Stream stream) {
  expect_shape(state.shape, {kStepStateBytes}, "weigh_gradients: state");
  expect_shape(weight.shape, {1}, "weigh_gradients: weight");
  return dispatch<cpu::weigh_gradients, cuda::weigh_gradients>("weigh_gradients", state, weight,
                                                               num_microbatches, stream);
}

void loss_seed(TensorView seed, ConstView state, int64_t num_microbatches, Stream stream) {
  expect_shape(seed.shape, {}, "loss_seed: seed");
  expect_shape(state.shape, {kStepStateBytes}, "loss_seed: state");
  return dispatch<cpu::loss_seed, cuda::loss_seed>("loss_seed", seed, state, num_microbatches,
                                                   stream);
}

}  // namespace megatron::kernels
