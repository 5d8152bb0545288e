#include "megatron/kernels/optimizer_step.h"

#include <cmath>

namespace megatron::kernels::cpu {

void step_sums(TensorView sums, ConstView found, ConstView losses, Stream) {
  const double* of_buffer = found.as<double>();  // {squares, zeros} of each group
  double squares = 0.0;
  double zeros = 0.0;
  double all_squares = 0.0;
  for (int64_t i = 0; i < found.size(0); ++i, of_buffer += 2 * kNumNormGroups) {
    const double* counted = of_buffer + 2 * kCountedInNorm;
    const double* not_counted = of_buffer + 2 * kNotCountedInNorm;
    squares += counted[0];
    zeros += counted[1];
    all_squares += counted[0] + not_counted[0];
  }
  bool is_finite = std::isfinite(all_squares);
  if (losses.data != nullptr) {
    const float* values = losses.as<float>();
    for (int64_t i = 0; i < losses.numel(); ++i) is_finite = is_finite && !std::isnan(values[i]);
  }
  auto* out = sums.as<double>();
  out[kSquares] = squares;
  out[kZeros] = zeros;
  out[kNumNotFinite] = is_finite ? 0.0 : 1.0;
}

void decide_step(TensorView state, ConstView sums, const StepRule& rule, Stream) {
  const double* in = sums.as<double>();
  kernels::decide_step(*reinterpret_cast<StepState*>(state.as<uint8_t>()), rule, in[kSquares],
                       in[kZeros], in[kNumNotFinite] > 0.0);
}

void weigh_gradients(TensorView state, ConstView weight, int64_t num_microbatches, Stream) {
  reinterpret_cast<StepState*>(state.as<uint8_t>())->gradient_weight =
      gradient_weight(static_cast<double>(num_microbatches), *weight.as<float>());
}

void loss_seed(TensorView seed, ConstView state, int64_t num_microbatches, Stream) {
  const double scale = reinterpret_cast<const StepState*>(state.as<uint8_t>())->loss_scale.scale;
  *seed.as<float>() = static_cast<float>(scale / static_cast<double>(num_microbatches));
}

}  // namespace megatron::kernels::cpu
