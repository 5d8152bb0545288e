#include "megatron/optim/loss_scaler.h"

namespace megatron {

LossScaler LossScaler::constant(double scale) {
  LossScaler scaler;
  scaler.state_.scale = scale;
  return scaler;
}

LossScaler LossScaler::dynamic(double initial_scale, double min_scale, double window,
                               int64_t hysteresis) {
  LossScaler scaler;
  scaler.rule_ = {
      .is_dynamic = true, .min_scale = min_scale, .window = window, .hysteresis = hysteresis};
  scaler.state_ = {.scale = initial_scale, .growth_tracker = 0, .hysteresis_tracker = hysteresis};
  return scaler;
}

void LossScaler::load(const LossScalerState& state) {
  if (is_dynamic()) {
    state_ = state;
  } else {
    state_.scale = state.scale;
  }
}

std::optional<LossScaler> make_loss_scaler(const OptimizerConfig& config) {
  if (config.loss_scale > 0.0) return LossScaler::constant(config.loss_scale);
  if (config.params_dtype == DType::kFloat16) {
    return LossScaler::dynamic(config.initial_loss_scale, config.min_loss_scale,
                               config.loss_scale_window, config.hysteresis);
  }
  return std::nullopt;
}

}  // namespace megatron
