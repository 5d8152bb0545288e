#include "megatron/kernels/norm.h"

#include <algorithm>

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void layer_norm_forward(TensorView y, TensorView mean, TensorView rstd, ConstView x,
                        ConstView weight, ConstView bias, float weight_offset, float epsilon,
                        Stream stream) {
  return dispatch<cpu::layer_norm_forward, cuda::layer_norm_forward>(
      "layer_norm", y, mean, rstd, x, weight, bias, weight_offset, epsilon, stream);
}

void layer_norm_backward(TensorView dx, TensorView dweight, TensorView dbias, ConstView dy,
                         ConstView x, ConstView mean, ConstView rstd, ConstView weight,
                         float weight_offset, float beta, TensorView workspace, Stream stream) {
  return dispatch<cpu::layer_norm_backward, cuda::layer_norm_backward>(
      "layer_norm", dx, dweight, dbias, dy, x, mean, rstd, weight, weight_offset, beta, workspace,
      stream);
}

void rms_norm_forward(TensorView y, TensorView rstd, ConstView x, ConstView weight,
                      float weight_offset, float epsilon, Stream stream) {
  return dispatch<cpu::rms_norm_forward, cuda::rms_norm_forward>("rms_norm", y, rstd, x, weight,
                                                                 weight_offset, epsilon, stream);
}

void rms_norm_backward(TensorView dx, TensorView dweight, ConstView dy, ConstView x, ConstView rstd,
                       ConstView weight, float weight_offset, float beta, TensorView workspace,
                       Stream stream) {
  return dispatch<cpu::rms_norm_backward, cuda::rms_norm_backward>(
      "rms_norm", dx, dweight, dy, x, rstd, weight, weight_offset, beta, workspace, stream);
}

int64_t norm_backward_workspace_bytes(const Shape& x, Stream stream) {
  return stream.is_cpu() ? 0 : cuda::norm_backward_workspace_bytes(x);
}

int64_t cuda::norm_backward_workspace_bytes(const Shape& x) {
  return 2 * std::min(kMaxPartials, x[0]) * x[1] * size_of(DType::kFloat32);
}

}  // namespace megatron::kernels
