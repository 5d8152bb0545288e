#include "megatron/kernels/masked_mean.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void masked_mean_forward(TensorView mean, TensorView count, ConstView losses, ConstView mask,
                         ConstView divisor, Stream stream) {
  if (stream.is_dry()) return;
  if (stream.is_cpu()) return cpu::masked_mean_forward(mean, count, losses, mask, divisor, stream);
  if constexpr (kBuiltWithCuda)
    return cuda::masked_mean_forward(mean, count, losses, mask, divisor, stream);
  throw_built_without_cuda("masked_mean");
}

void masked_mean_backward(TensorView dlosses, ConstView dmean, ConstView count, ConstView mask,
                          Stream stream) {
  return dispatch<cpu::masked_mean_backward, cuda::masked_mean_backward>(
      "masked_mean", dlosses, dmean, count, mask, stream);
}

}  // namespace megatron::kernels
