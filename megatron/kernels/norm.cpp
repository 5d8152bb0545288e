#include "megatron/kernels/norm.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void layer_norm_forward(TensorView y, TensorView mean, TensorView rstd, ConstView x,
                        ConstView weight, ConstView bias, float weight_offset, float epsilon,
                        Stream stream) {
  if (stream.is_cpu()) {
    return cpu::layer_norm_forward(y, mean, rstd, x, weight, bias, weight_offset, epsilon, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::layer_norm_forward(y, mean, rstd, x, weight, bias, weight_offset, epsilon, stream);
  }
  throw_built_without_cuda("layer_norm");
}

void layer_norm_backward(TensorView dx, TensorView dweight, TensorView dbias, ConstView dy,
                         ConstView x, ConstView mean, ConstView rstd, ConstView weight,
                         float weight_offset, float beta, TensorView workspace, Stream stream) {
  if (stream.is_cpu()) {
    return cpu::layer_norm_backward(dx, dweight, dbias, dy, x, mean, rstd, weight, weight_offset,
                                    beta, workspace, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::layer_norm_backward(dx, dweight, dbias, dy, x, mean, rstd, weight, weight_offset,
                                     beta, workspace, stream);
  }
  throw_built_without_cuda("layer_norm");
}

void rms_norm_forward(TensorView y, TensorView rstd, ConstView x, ConstView weight,
                      float weight_offset, float epsilon, Stream stream) {
  if (stream.is_cpu()) {
    return cpu::rms_norm_forward(y, rstd, x, weight, weight_offset, epsilon, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::rms_norm_forward(y, rstd, x, weight, weight_offset, epsilon, stream);
  }
  throw_built_without_cuda("rms_norm");
}

void rms_norm_backward(TensorView dx, TensorView dweight, ConstView dy, ConstView x, ConstView rstd,
                       ConstView weight, float weight_offset, float beta, TensorView workspace,
                       Stream stream) {
  if (stream.is_cpu()) {
    return cpu::rms_norm_backward(dx, dweight, dy, x, rstd, weight, weight_offset, beta, workspace,
                                  stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::rms_norm_backward(dx, dweight, dy, x, rstd, weight, weight_offset, beta, workspace,
                                   stream);
  }
  throw_built_without_cuda("rms_norm");
}

int64_t norm_backward_workspace_bytes(const Shape& x, Stream stream) {
  if constexpr (kBuiltWithCuda) {
    if (!stream.is_cpu()) return cuda::norm_backward_workspace_bytes(x);
  }
  return 0;
}

}  // namespace megatron::kernels
