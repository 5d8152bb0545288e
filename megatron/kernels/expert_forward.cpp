#include "megatron/kernels/expert_forward.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

bool has_expert_forward(ConstView x, ConstView ids, const ExpertLayers& layers, Stream stream) {
  if constexpr (kBuiltWithCuda) {
    return !stream.is_cpu() && !stream.is_dry() && cuda::has_expert_forward(x, ids, layers, stream);
  }
  return false;
}

void expert_forward(TensorView y, TensorView inside, ConstView x, ConstView ids, ConstView weights,
                    const ExpertLayers& layers, Stream stream) {
  expect_shape(y.shape, x.shape, "expert_forward: y");
  expect_shape(inside.shape, {ids.numel(), layers.fc2.size(2)}, "expert_forward: inside");
  expect_shape(weights.shape, ids.shape, "expert_forward: weights");
  if constexpr (kBuiltWithCuda) {
    return cuda::expert_forward(y, inside, x, ids, weights, layers, stream);
  }
  throw_built_without_cuda("expert_forward");
}

}  // namespace megatron::kernels
