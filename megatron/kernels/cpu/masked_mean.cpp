#include "megatron/kernels/masked_mean.h"

#include <algorithm>

namespace megatron::kernels::cpu {

// One float per token: one thread finishes before a second one would start.
void masked_mean_forward(TensorView mean, TensorView count, ConstView losses, ConstView mask,
                         ConstView divisor, Stream) {
  const int64_t length = losses.size(0);
  const int64_t batch = losses.size(1);
  expect_shape(mask.shape, {batch, length}, "masked_mean: mask");
  const float* loss = losses.as<float>();
  const float* weight = mask.as<float>();
  double sum = 0;
  double weights = 0;
  for (int64_t j = 0; j < batch; ++j) {
    for (int64_t i = 0; i < length; ++i) {
      const double w = weight[j * length + i];
      if (w != 0) sum += w * static_cast<double>(loss[i * batch + j]);
      weights += w;
    }
  }
  const double by = divisor.data == nullptr ? std::max(weights, 1.0) : *divisor.as<float>();
  *mean.as<float>() = static_cast<float>(sum / by);
  *count.as<float>() = static_cast<float>(by);
}

void masked_mean_backward(TensorView dlosses, ConstView dmean, ConstView count, ConstView mask,
                          Stream) {
  const int64_t length = dlosses.size(0);
  const int64_t batch = dlosses.size(1);
  expect_shape(mask.shape, {batch, length}, "masked_mean: mask");
  const float scale = *dmean.as<float>() / *count.as<float>();
  const float* weight = mask.as<float>();
  float* out = dlosses.as<float>();
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t j = 0; j < batch; ++j) out[i * batch + j] = scale * weight[j * length + i];
  }
}

}  // namespace megatron::kernels::cpu
