#include "megatron/kernels/optimizer.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
namespace {

// Throws unless `main` is fp32, or the remainder of a bf16 model.
void expect_main(TensorView model, TensorView main, const char* who) {
  if (main.dtype == DType::kFloat32) return;
  expect_dtype(main.dtype, DType::kInt16, who);
  expect_dtype(model.dtype, DType::kBFloat16, who);
  expect_shape(model.shape, main.shape, who);
}

void expect_joined(ConstView main, ConstView model, ConstView remainder, const char* who) {
  expect_dtype(main.dtype, DType::kFloat32, who);
  expect_dtype(model.dtype, DType::kBFloat16, who);
  expect_dtype(remainder.dtype, DType::kInt16, who);
  expect_shape(model.shape, main.shape, who);
  expect_shape(remainder.shape, main.shape, who);
}

void expect_moment(const Moment& moment, const Shape& shape, const char* who) {
  expect_shape(moment.elements.shape, shape, who);
  if (!moment.is_fp8()) return;
  expect_dtype(moment.exponents.dtype, DType::kUInt8, who);
  expect_shape(moment.exponents.shape, {(shape.numel() + kMomentBlock - 1) / kMomentBlock}, who);
}

}  // namespace

void adam(TensorView model, TensorView main, const Moment& exp_avg, const Moment& exp_avg_sq,
          ConstView grad, const GroupRanges& ranges, std::span<const AdamNumbers> numbers,
          ConstView state, Stream stream) {
  expect_main(model, main, "adam: main");
  expect_moment(exp_avg, main.shape, "adam: exp_avg");
  expect_moment(exp_avg_sq, main.shape, "adam: exp_avg_sq");
  if (exp_avg.is_fp8() || exp_avg_sq.is_fp8()) {
    expect_shape(ranges.keys.shape, ranges.ends.shape, "adam: keys of moments in fp8");
    expect_dtype(ranges.keys.dtype, DType::kInt32, "adam: keys of moments in fp8");
  }
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
  expect_main(model, main, "sgd_momentum: main");
  if (stream.is_cpu()) {
    return cpu::sgd_momentum(model, main, momentum_buffer, grad, ranges, numbers, state, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::sgd_momentum(model, main, momentum_buffer, grad, ranges, numbers, state, stream);
  }
  throw_built_without_cuda("sgd_momentum");
}

void join_main_params(TensorView main, ConstView model, ConstView remainder, Stream stream) {
  expect_joined(main, model, remainder, "join_main_params");
  if (stream.is_cpu()) return cpu::join_main_params(main, model, remainder, stream);
  if constexpr (kBuiltWithCuda) return cuda::join_main_params(main, model, remainder, stream);
  throw_built_without_cuda("join_main_params");
}

void split_main_params(TensorView remainder, ConstView main, ConstView model, Stream stream) {
  expect_joined(main, model, remainder, "split_main_params");
  if (stream.is_cpu()) return cpu::split_main_params(remainder, main, model, stream);
  if constexpr (kBuiltWithCuda) return cuda::split_main_params(remainder, main, model, stream);
  throw_built_without_cuda("split_main_params");
}

void decode_moment(TensorView moment, const Moment& codes, const MomentCode& code, Stream stream) {
  expect_moment(codes, moment.shape, "decode_moment");
  if (stream.is_cpu()) return cpu::decode_moment(moment, codes, code, stream);
  if constexpr (kBuiltWithCuda) return cuda::decode_moment(moment, codes, code, stream);
  throw_built_without_cuda("decode_moment");
}

void encode_moment(const Moment& codes, ConstView moment, const MomentCode& code, Stream stream) {
  expect_moment(codes, moment.shape, "encode_moment");
  if (stream.is_cpu()) return cpu::encode_moment(codes, moment, code, stream);
  if constexpr (kBuiltWithCuda) return cuda::encode_moment(codes, moment, code, stream);
  throw_built_without_cuda("encode_moment");
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
