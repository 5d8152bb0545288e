#pragma once

#include <cstdint>
#include <optional>

#include "megatron/kernels/optimizer_rule.h"
#include "megatron/optim/config.h"

namespace megatron {

// The state of a loss scaler in a checkpoint (key `grad_scaler`).
using LossScalerState = kernels::LossScaleState;

// Keeps fp16 gradients out of the subnormals: multiplies the loss by scale() and divides the
// gradients by it. A constant scaler never changes; a dynamic one halves after overflows and
// doubles after `window` consecutive clean steps. The device applies the same
// kernels::update_loss_scale.
class LossScaler {
 public:
  static LossScaler constant(double scale);
  static LossScaler dynamic(double initial_scale, double min_scale, double window,
                            int64_t hysteresis);

  double scale() const { return state_.scale; }
  bool is_dynamic() const { return rule_.is_dynamic; }
  // Call once a step; found_inf: some gradient was infinite or NaN.
  void update(bool found_inf) { kernels::update_loss_scale(state_, rule_, found_inf); }

  const LossScalerState& state() const { return state_; }
  const kernels::LossScaleRule& rule() const { return rule_; }
  // A constant scaler uses only the scale.
  void load(const LossScalerState& state);

 private:
  LossScalerState state_;
  kernels::LossScaleRule rule_;
};

// The scaler of a config: constant with --loss-scale, dynamic for other fp16 runs, otherwise none.
std::optional<LossScaler> make_loss_scaler(const OptimizerConfig& config);

}  // namespace megatron
