#include "megatron/kernels/optimizer.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void adam(TensorView model, TensorView main, TensorView exp_avg, TensorView exp_avg_sq,
          ConstView grad, const GroupRanges& ranges, std::span<const AdamNumbers> numbers,
          double grad_scale, Stream stream) {
  if (stream.is_cpu()) {
    return cpu::adam(model, main, exp_avg, exp_avg_sq, grad, ranges, numbers, grad_scale, stream);
  }
  throw_built_without_cuda("adam");
}

void sgd_momentum(TensorView model, TensorView main, TensorView momentum_buffer, ConstView grad,
                  const GroupRanges& ranges, std::span<const SgdNumbers> numbers, double grad_scale,
                  Stream stream) {
  if (stream.is_cpu()) {
    return cpu::sgd_momentum(model, main, momentum_buffer, grad, ranges, numbers, grad_scale,
                             stream);
  }
  throw_built_without_cuda("sgd_momentum");
}

void squares_and_zeros(TensorView y, ConstView x, const GroupRanges& ranges, Stream stream) {
  if (stream.is_cpu()) return cpu::squares_and_zeros(y, x, ranges, stream);
  throw_built_without_cuda("squares_and_zeros");
}

}  // namespace megatron::kernels
