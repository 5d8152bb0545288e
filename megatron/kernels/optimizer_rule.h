#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "megatron/device/host_device.h"

// The rule of an optimizer step, shared by the host, the CPU and the GPU: it turns sums over
// gradients into a decision and adapts the loss scale to overflows.
namespace megatron::kernels {

// The factor of the loss, and the state of its rule.
struct LossScaleState {
  double scale = 1.0;
  int64_t growth_tracker = 0;      // clean steps since the last growth or overflow
  int64_t hysteresis_tracker = 0;  // overflows left before the scale halves
};

// How a dynamic loss scale changes (Micikevicius et al. 2018, arXiv:1710.03740, sec. 3.2).
struct LossScaleRule {
  bool is_dynamic = false;  // otherwise the scale never changes
  double min_scale = 1.0;
  double window = 0.0;     // consecutive clean steps before the scale doubles
  int64_t hysteresis = 0;  // overflows before the scale halves
};

// Updates the scale after one step; found_inf: some gradient was infinite or NaN.
// Compat: Megatron-LM refills the hysteresis only when the scale grows. After the first
// `hysteresis` overflows every further one therefore halves the scale at once.
MG_HOST_DEVICE inline void update_loss_scale(LossScaleState& state, const LossScaleRule& rule,
                                             bool found_inf) {
  if (!rule.is_dynamic) return;
  if (found_inf) {
    state.growth_tracker = 0;
    state.hysteresis_tracker -= 1;
    if (state.hysteresis_tracker > 0) return;
    const double half = state.scale * 0.5;
    state.scale = half > rule.min_scale ? half : rule.min_scale;
    return;
  }
  state.growth_tracker += 1;
  if (static_cast<double>(state.growth_tracker) >= rule.window) {
    state.growth_tracker = 0;
    state.hysteresis_tracker = rule.hysteresis;
    state.scale *= 2.0;
  }
}

// The value of StepState::first_not_finite if all gradients are finite.
inline constexpr int64_t kAllFinite = std::numeric_limits<int64_t>::max();

// The decision of a step, and the new loss scale. Lives in device memory, where the update kernels
// read it; the host reads a copy later.
struct StepState {
  LossScaleState loss_scale = {};  // for the next backward pass
  int64_t is_skipped = 0;          // 1: nothing is updated
  double grad_scale = 1.0;  // gradients are multiplied by it: 1 / loss scale * clip coefficient
  double grad_norm = 0.0;   // of the unscaled gradients, before clipping
  double num_zeros = 0.0;
  int64_t first_not_finite = kAllFinite;  // index of a parameter, if searched
  // Factor from the summed gradients to those of the batch (weigh_gradients).
  double gradient_weight = 1.0;
};

struct StepRule {
  LossScaleRule loss_scale = {};
  bool skips_not_finite = false;  // else such gradients are used
  double clip_grad = 0.0;         // limit of the norm; 0: no clipping
};

// The factor for gradients summed over num_microbatches microbatches of equal weight.
MG_HOST_DEVICE inline double gradient_weight(double num_microbatches, double weight) {
  return weight > 0.0 ? num_microbatches / weight : 1.0;
}

// Decides one step from sums over the gradients of all ranks of the model.
MG_HOST_DEVICE inline void decide_step(StepState& state, const StepRule& rule, double squares,
                                       double num_zeros, bool found_inf) {
  const double inverse_scale = state.gradient_weight / state.loss_scale.scale;
  const double norm = std::sqrt(squares) * inverse_scale;
  state.is_skipped = found_inf && rule.skips_not_finite ? 1 : 0;
  state.grad_norm = norm;
  state.num_zeros = num_zeros;
  state.first_not_finite = kAllFinite;
  state.grad_scale = inverse_scale;
  if (rule.clip_grad > 0.0) {
    const double coefficient = rule.clip_grad / (norm + 1e-6);
    if (coefficient < 1.0) state.grad_scale *= coefficient;
  }
  update_loss_scale(state.loss_scale, rule.loss_scale, found_inf);
}

}  // namespace megatron::kernels
