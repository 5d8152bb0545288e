#include "megatron/kernels/optimizer.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
namespace {

// Throws unless `main` is fp32, bf16 with places for its rounding, or the remainder of a bf16
// model.
void expect_main(TensorView model, TensorView main, const GroupRanges& ranges, const char* who) {
  if (main.dtype == DType::kFloat32) return;
  if (main.dtype == DType::kBFloat16) {
    if (!model.is_null()) expect_dtype(model.dtype, DType::kBFloat16, who);
    expect_dtype(ranges.rounding.places.dtype, DType::kInt64, who);
    expect_shape(ranges.rounding.places.shape, {ranges.rounding.ends.numel(), kPlaceNumbers}, who);
    return;
  }
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
  expect_main(model, main, ranges, "adam: main");
  expect_moment(exp_avg, main.shape, "adam: exp_avg");
  expect_moment(exp_avg_sq, main.shape, "adam: exp_avg_sq");
  if (exp_avg.is_fp8() || exp_avg_sq.is_fp8()) {
    expect_shape(ranges.keys.shape, ranges.ends.shape, "adam: keys of moments in fp8");
    expect_dtype(ranges.keys.dtype, DType::kInt32, "adam: keys of moments in fp8");
  }
  return dispatch<cpu::adam, cuda::adam>("adam", model, main, exp_avg, exp_avg_sq, grad, ranges,
                                         numbers, state, stream);
}

void sgd_momentum(TensorView model, TensorView main, TensorView momentum_buffer, ConstView grad,
                  const GroupRanges& ranges, std::span<const SgdNumbers> numbers, ConstView state,
                  Stream stream) {
  expect_main(model, main, ranges, "sgd_momentum: main");
  return dispatch<cpu::sgd_momentum, cuda::sgd_momentum>(
      "sgd_momentum", model, main, momentum_buffer, grad, ranges, numbers, state, stream);
}

void lion(TensorView model, TensorView main, const Moment& exp_avg, ConstView grad,
          const GroupRanges& ranges, std::span<const LionNumbers> numbers, ConstView state,
          Stream stream) {
  expect_main(model, main, ranges, "lion: main");
  expect_moment(exp_avg, main.shape, "lion: exp_avg");
  invariant(!exp_avg.is_fp8(), "lion: exp_avg is not in fp8");
  return dispatch<cpu::lion, cuda::lion>("lion", model, main, exp_avg, grad, ranges, numbers, state,
                                         stream);
}

void join_main_params(TensorView main, ConstView model, ConstView remainder, Stream stream) {
  expect_joined(main, model, remainder, "join_main_params");
  return dispatch<cpu::join_main_params, cuda::join_main_params>("join_main_params", main, model,
                                                                 remainder, stream);
}

void split_main_params(TensorView remainder, ConstView main, ConstView model, Stream stream) {
  expect_joined(main, model, remainder, "split_main_params");
  return dispatch<cpu::split_main_params, cuda::split_main_params>("split_main_params", remainder,
                                                                   main, model, stream);
}

void decode_moment(TensorView moment, const Moment& codes, const MomentCode& code, Stream stream) {
  expect_moment(codes, moment.shape, "decode_moment");
  return dispatch<cpu::decode_moment, cuda::decode_moment>("decode_moment", moment, codes, code,
                                                           stream);
}

void encode_moment(const Moment& codes, ConstView moment, const MomentCode& code, Stream stream) {
  expect_moment(codes, moment.shape, "encode_moment");
  return dispatch<cpu::encode_moment, cuda::encode_moment>("encode_moment", codes, moment, code,
                                                           stream);
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
  return dispatch<cpu::squares_and_zeros, cuda::squares_and_zeros>("squares_and_zeros", y, x,
                                                                   ranges, scratch, stream);
}

void find_not_finite(TensorView state, ConstView x, const GroupRanges& ranges, Stream stream) {
  expect_shape(state.shape, {kStepStateBytes}, "find_not_finite: state");
  return dispatch<cpu::find_not_finite, cuda::find_not_finite>("find_not_finite", state, x, ranges,
                                                               stream);
}

}  // namespace megatron::kernels
