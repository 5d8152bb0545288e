#include "megatron/kernels/relative_bias.h"

#include <vector>

namespace megatron::kernels::cpu {

void relative_bias_forward(TensorView bias, ConstView table, ConstView buckets, Stream) {
  const int64_t heads = bias.size(0);
  const int64_t distances = bias.size(1);
  const float* from = table.as<float>();
  const int64_t* bucket = buckets.as<int64_t>();
  float* to = bias.as<float>();
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < distances; ++i) *to++ = from[bucket[i] * heads + head];
  }
}

void relative_bias_backward(TensorView dtable, ConstView dbias, ConstView buckets, Stream) {
  const int64_t heads = dbias.size(0);
  const int64_t distances = dbias.size(1);
  const float* from = dbias.as<float>();
  const int64_t* bucket = buckets.as<int64_t>();
  std::vector<double> sums(static_cast<size_t>(dtable.numel()));
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t i = 0; i < distances; ++i) {
      sums[static_cast<size_t>(bucket[i] * heads + head)] += static_cast<double>(*from++);
    }
  }
  float* to = dtable.as<float>();
  for (const double sum : sums) *to++ = static_cast<float>(sum);
}

}  // namespace megatron::kernels::cpu
