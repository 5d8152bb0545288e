#include "megatron/kernels/fp8.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void Fp8Source::expect_valid(const char* who) const {
  if (!is_derivative()) return;
  invariant(activation.has_value(), "fp8_quantize: a derivative is that of an activation");
  const std::string name = std::string(who) + ": dy";
  expect_shape(dy.shape, {rows(), is_gated(*activation) ? cols() / 2 : cols()}, name.c_str());
  expect_dtype(dy.dtype, x.dtype, name.c_str());
}

namespace {

void expect_matrices(const Fp8Target& target, const Fp8Source& source, ConstView scale) {
  const int64_t rows = source.rows();
  const int64_t cols = source.cols();
  source.expect_valid("fp8_quantize");
  if (!target.rows.is_null()) expect_shape(target.rows.shape, {rows, cols}, "fp8_quantize: rows");
  if (!target.columns.is_null()) {
    expect_shape(target.columns.shape, {cols, rows}, "fp8_quantize: columns");
    if (!target.rows.is_null()) {
      expect_dtype(target.columns.dtype, target.rows.dtype, "fp8_quantize: columns");
    }
  }
  if (!target.inverse.is_null()) expect_shape(target.inverse.shape, {1}, "fp8_quantize: inverse");
  if (!target.amax.is_null()) expect_shape(target.amax.shape, {1}, "fp8_quantize: amax");
  if (!target.sums.is_null()) {
    expect_shape(target.sums.shape, {(rows + kFp8SumRows - 1) / kFp8SumRows, cols},
                 "fp8_quantize: sums");
  }
  if (!target.value.columns.is_null()) {
    invariant(source.is_derivative(), "fp8_quantize: a value is made beside its derivative");
    const int64_t of_value = Fp8Source{source.x, source.activation}.cols();
    expect_shape(target.value.columns.shape, {of_value, rows}, "fp8_quantize: value");
    expect_dtype(target.value.columns.dtype, DType::kFloat8E4M3, "fp8_quantize: value");
    expect_shape(target.value.scale.shape, {1}, "fp8_quantize: scale of the value");
  }
  const bool is_made =
      !target.rows.is_null() || !target.columns.is_null() || !target.inverse.is_null();
  if (is_made) expect_shape(scale.shape, {1}, "fp8_quantize: scale");
}

}  // namespace

void fp8_quantize(const Fp8Target& target, const Fp8Source& source, ConstView scale,
                  Stream stream) {
  expect_matrices(target, source, scale);
  return dispatch<cpu::fp8_quantize, cuda::fp8_quantize>("fp8_quantize", target, source, scale,
                                                         stream);
}

}  // namespace megatron::kernels
