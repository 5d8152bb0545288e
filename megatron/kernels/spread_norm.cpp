#include "megatron/kernels/spread_norm.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void row_squares(TensorView sums, ConstView x, Stream stream) {
  return dispatch<cpu::row_squares, cuda::row_squares>("row_squares", sums, x, stream);
}

void spread_norm_forward(TensorView y, TensorView rstd, ConstView x, ConstView squares,
                         ConstView weight, const SpreadNorm& norm, Stream stream) {
  return dispatch<cpu::spread_norm_forward, cuda::spread_norm_forward>(
      "spread_norm_forward", y, rstd, x, squares, weight, norm, stream);
}

void spread_norm_dots(TensorView sums, ConstView dy, ConstView x, ConstView rstd, ConstView weight,
                      const SpreadNorm& norm, Stream stream) {
  return dispatch<cpu::spread_norm_dots, cuda::spread_norm_dots>("spread_norm_dots", sums, dy, x,
                                                                 rstd, weight, norm, stream);
}

void spread_norm_backward(TensorView dx, TensorView products, ConstView dy, ConstView x,
                          ConstView rstd, ConstView dots, ConstView weight, const SpreadNorm& norm,
                          Stream stream) {
  return dispatch<cpu::spread_norm_backward, cuda::spread_norm_backward>(
      "spread_norm_backward", dx, products, dy, x, rstd, dots, weight, norm, stream);
}

}  // namespace megatron::kernels
