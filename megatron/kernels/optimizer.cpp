#include "megatron/kernels/optimizer.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void adam(TensorView model, TensorView main, TensorView exp_avg, TensorView exp_avg_sq,
          ConstView grad, const GroupRanges& ranges, std::span<const AdamNumbers> numbers,
          ConstView state, Stream stream) {
  if (stream.is_cpu()) {
    return cpu::adam(model, main, exp_avg, exp_avg_sq, grad, ranges, numbers, state, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::adam(model, main, exp_avg, exp_avg_sq, grad, ranges, numbers, state, stream);
  }
  throw_built_without_cuda("adam");
}

void sgd_momentum(TensorView model, TensorView main, TensorView momentum_buffer, ConstView grad,
                  const GroupRanges& ranges, std::span<const SgdNumbers> numbers, ConstView state,
                  Stream stream) {
  if (stream.is_cpu()) {
    return cpu::sgd_momentum(model, main, momentum_buffer, grad, ranges, numbers, state, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::sgd_momentum(model, main, momentum_buffer, grad, ranges, numbers, state, stream);
  }
  throw_built_without_cuda("sgd_momentum");
}

Shape measure_scratch_shape(int64_t n, int64_t num_groups) {
  return {(n + kMeasureChunk - 1) / kMeasureChunk, num_groups, 2};
}

void squares_and_zeros(TensorView y, ConstView x, const GroupRanges& ranges, TensorView scratch,
                       Stream stream) {
  expect_shape(y.shape, {y.size(0), 2}, "squares_and_zeros: y");
  expect_dtype(y.dtype, DType::kFloat64, "squares_and_zeros: y");
  expect_shape(scratch.shape, measure_scratch_shape(x.numel(), y.size(0)),
               "squares_and_zeros: scratch");
  expect_dtype(scratch.dtype, DType::kFloat64, "squares_and_zeros: scratch");
  if (stream.is_cpu()) return cpu::squares_and_zeros(y, x, ranges, scratch, stream);
  if constexpr (kBuiltWithCuda) return cuda::squares_and_zeros(y, x, ranges, scratch, stream);
  throw_built_without_cuda("squares_and_zeros");
}

void find_not_finite(TensorView state, ConstView x, const GroupRanges& ranges, Stream stream) {
  expect_shape(state.shape, {kStepStateBytes}, "find_not_finite: state");
  if (stream.is_cpu()) return cpu::find_not_finite(state, x, ranges, stream);
  if constexpr (kBuiltWithCuda) return cuda::find_not_finite(state, x, ranges, stream);
  throw_built_without_cuda("find_not_finite");
}

}  // namespace megatron::kernels
