#include "megatron/kernels/norm.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void layer_norm_forward(TensorView y, TensorView mean, TensorView rstd, ConstView x,
                        ConstView weight, ConstView bias, float weight_offset, float epsilon,
                        Stream stream) {
  if (stream.is_cpu()) {
    return cpu::layer_norm_forward(y, mean, rstd, x, weight, bias, weight_offset, epsilon, stream);
  }
  throw_built_without_cuda("layer_norm");
}

void layer_norm_backward(TensorView dx, TensorView dweight, TensorView dbias, ConstView dy,
                         ConstView x, ConstView mean, ConstView rstd, ConstView weight,
                         float weight_offset, float beta, Stream stream) {
  if (stream.is_cpu()) {
    return cpu::layer_norm_backward(dx, dweight, dbias, dy, x, mean, rstd, weight, weight_offset,
                                    beta, stream);
  }
  throw_built_without_cuda("layer_norm");
}

void rms_norm_forward(TensorView y, TensorView rstd, ConstView x, ConstView weight,
                      float weight_offset, float epsilon, Stream stream) {
  if (stream.is_cpu()) {
    return cpu::rms_norm_forward(y, rstd, x, weight, weight_offset, epsilon, stream);
  }
  throw_built_without_cuda("rms_norm");
}

void rms_norm_backward(TensorView dx, TensorView dweight, ConstView dy, ConstView x, ConstView rstd,
                       ConstView weight, float weight_offset, float beta, Stream stream) {
  if (stream.is_cpu()) {
    return cpu::rms_norm_backward(dx, dweight, dy, x, rstd, weight, weight_offset, beta, stream);
  }
  throw_built_without_cuda("rms_norm");
}

}  // namespace megatron::kernels
