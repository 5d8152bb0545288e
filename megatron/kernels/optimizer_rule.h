#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "megatron/device/host_device.h"

// The rule of an optimizer step, in one place for the host, the CPU and the GPU: how sums over
// gradients become a decision, and how the loss scale follows overflows.
namespace megatron::kernels {

// What the loss is multiplied by, and what the rule remembers.
struct LossScaleState {
  double scale = 1.0;
  int64_t growth_tracker = 0;      // clean steps since the last growth or overflow
  int64_t hysteresis_tracker = 0;  // overflows left before the scale halves
};

// How a dynamic loss scale changes (Micikevicius et al. 2018, arXiv:1710.03740, sec. 3.2).
struct LossScaleRule {
  bool is_dynamic = false;  // otherwise the scale never changes
  double min_scale = 1.0;
  double window = 0.0;     // clean steps in a row after which it doubles
  int64_t hysteresis = 0;  // overflows after which it halves
};

// After one step; found_inf: some gradient was infinite or not a number.
// Compat: Megatron-LM refills the hysteresis only when the scale grows, so that after the first
// `hysteresis` overflows every further one halves the scale at once.
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

// StepState::first_not_finite where there is none.
inline constexpr int64_t kAllFinite = std::numeric_limits<int64_t>::max();

// What a step decided, and the loss scale it leaves behind. Lives in device memory, where the
// update kernels read it; the host reads a copy when it arrives.
struct StepState {
  LossScaleState loss_scale = {};  // of the next backward pass
  int64_t is_skipped = 0;          // 1: nothing is updated
  double grad_scale = 1.0;  // gradients are multiplied by it: 1 / loss scale * clip coefficient
  double grad_norm = 0.0;   // of the unscaled gradients, before clipping
  double num_zeros = 0.0;
  int64_t first_not_finite = kAllFinite;  // position of a parameter, when it was looked for
};

struct StepRule {
  LossScaleRule loss_scale = {};
  bool skips_not_finite = false;  // otherwise such gradients are used as they are
  double clip_grad = 0.0;         // limit of the norm; 0: no clipping
};

// One step, from what was summed over the gradients of all ranks of the model.
MG_HOST_DEVICE inline void decide_step(StepState& state, const StepRule& rule, double squares,
                                       double num_zeros, bool found_inf) {
  const double inverse_scale = 1.0 / state.loss_scale.scale;
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
