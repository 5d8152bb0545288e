#pragma once

#include <cstdint>
#include <optional>

#include "megatron/optim/config.h"

namespace megatron {

// What a checkpoint stores of a loss scaler (key `grad_scaler`).
struct LossScalerState {
  double scale = 1.0;
  int64_t growth_tracker = 0;      // clean steps since the last growth or overflow
  int64_t hysteresis_tracker = 0;  // overflows left before the scale halves
};

// Keeps fp16 gradients out of the subnormals: the loss is multiplied by scale(), the gradients are
// divided by it. A constant scaler never changes; a dynamic one halves after overflows and doubles
// after `window` clean steps in a row (Micikevicius et al. 2018, arXiv:1710.03740, sec. 3.2).
class LossScaler {
 public:
  static LossScaler constant(double scale);
  // Compat: Megatron-LM refills the hysteresis only when the scale grows, so that after the first
  // `hysteresis` overflows every further one halves the scale at once.
  static LossScaler dynamic(double initial_scale, double min_scale, double window,
                            int64_t hysteresis);

  double scale() const { return state_.scale; }
  bool is_dynamic() const { return is_dynamic_; }
  // Call once a step; found_inf: some gradient was infinite or not a number.
  void update(bool found_inf);

  const LossScalerState& state() const { return state_; }
  // A constant scaler takes only the scale.
  void load(const LossScalerState& state);

 private:
  LossScalerState state_;
  bool is_dynamic_ = false;
  double min_scale_ = 1.0;
  double window_ = 0.0;
  int64_t hysteresis_ = 0;
};

// The scaler a config asks for: constant with --loss-scale (for 16-bit parameters, or any with the
// distributed optimizer), dynamic for other fp16 runs, none otherwise.
std::optional<LossScaler> make_loss_scaler(const OptimizerConfig& config,
                                           bool use_distributed_optimizer = false);

}  // namespace megatron
