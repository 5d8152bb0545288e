#include "megatron/kernels/optimizer_step.h"

#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {
namespace {

// One thread: a model has one or two buffers and a few losses, and sums have the CPU's order.
__global__ void step_sums_kernel(double* sums, const double* found, int64_t buffers,
                                 const float* losses, int64_t num_losses) {
  double squares = 0.0;
  double zeros = 0.0;
  double all_squares = 0.0;
  for (int64_t i = 0; i < buffers; ++i, found += 2 * kNumNormGroups) {
    const double* counted = found + 2 * kCountedInNorm;
    const double* not_counted = found + 2 * kNotCountedInNorm;
    squares += counted[0];
    zeros += counted[1];
    all_squares += counted[0] + not_counted[0];
  }
  bool is_finite = isfinite(all_squares);
  for (int64_t i = 0; i < num_losses; ++i) is_finite = is_finite && !isnan(losses[i]);
  sums[kSquares] = squares;
  sums[kZeros] = zeros;
  sums[kNumNotFinite] = is_finite ? 0.0 : 1.0;
}

__global__ void decide_step_kernel(StepState* state, const double* sums, StepRule rule) {
  kernels::decide_step(*state, rule, sums[kSquares], sums[kZeros], sums[kNumNotFinite] > 0.0);
}

__global__ void weigh_gradients_kernel(StepState* state, const float* weight,
                                       double num_microbatches) {
  state->gradient_weight = gradient_weight(num_microbatches, *weight);
}

__global__ void loss_seed_kernel(float* seed, const StepState* state, double num_microbatches) {
  *seed = static_cast<float>(state->loss_scale.scale / num_microbatches);
}

}  // namespace

void step_sums(TensorView sums, ConstView found, ConstView losses, Stream stream) {
  const bool has_losses = losses.data != nullptr;
  step_sums_kernel<<<1, 1, 0, native(stream)>>>(
      sums.as<double>(), found.as<double>(), found.size(0),
      has_losses ? losses.as<float>() : nullptr, has_losses ? losses.numel() : 0);
  MG_CUDA(cudaGetLastError());
}

void decide_step(TensorView state, ConstView sums, const StepRule& rule, Stream stream) {
  decide_step_kernel<<<1, 1, 0, native(stream)>>>(reinterpret_cast<StepState*>(state.as<uint8_t>()),
                                                  sums.as<double>(), rule);
  MG_CUDA(cudaGetLastError());
}

void weigh_gradients(TensorView state, ConstView weight, int64_t num_microbatches, Stream stream) {
  weigh_gradients_kernel<<<1, 1, 0, native(stream)>>>(
      reinterpret_cast<StepState*>(state.as<uint8_t>()), weight.as<float>(),
      static_cast<double>(num_microbatches));
  MG_CUDA(cudaGetLastError());
}

void loss_seed(TensorView seed, ConstView state, int64_t num_microbatches, Stream stream) {
  loss_seed_kernel<<<1, 1, 0, native(stream)>>>(
      seed.as<float>(), reinterpret_cast<const StepState*>(state.as<uint8_t>()),
      static_cast<double>(num_microbatches));
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
