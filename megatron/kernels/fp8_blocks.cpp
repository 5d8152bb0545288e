#include "megatron/kernels/fp8_blocks.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
namespace {

constexpr const char* kWho = "fp8_quantize_blocks";

int64_t blocks_in(int64_t size) { return (size + kFp8Block - 1) / kFp8Block; }

void expect_blocked(const Fp8Blocked& to, Fp8Blocks blocks, const Shape& shape) {
  if (to.is_null()) return;
  expect_shape(to.matrix.shape, shape, "fp8_quantize_blocks: matrix");
  expect_shape(to.inverses.shape, fp8_scales_shape(blocks, shape), "fp8_quantize_blocks: inverses");
  expect_dtype(to.inverses.dtype, DType::kFloat32, "fp8_quantize_blocks: inverses");
}

void expect_target(const Fp8BlockTarget& target, const Fp8Source& source) {
  const int64_t rows = source.rows();
  const int64_t cols = source.cols();
  source.expect_valid(kWho);
  invariant(target.blocks == Fp8Blocks::kLine || target.blocks == Fp8Blocks::kSquare,
            "fp8_quantize_blocks: blocks are lines or squares");
  invariant(target.blocks == Fp8Blocks::kLine || !source.activation,
            "fp8_quantize_blocks: squares are for a matrix as it is");
  expect_blocked(target.rows, target.blocks, {rows, cols});
  expect_blocked(target.columns, target.blocks, {cols, rows});
  if (!target.rows.is_null() && !target.columns.is_null()) {
    expect_dtype(target.columns.matrix.dtype, target.rows.matrix.dtype,
                 "fp8_quantize_blocks: columns");
  }
  if (!target.value.is_null()) {
    invariant(source.is_derivative(), "fp8_quantize_blocks: a value is made beside its derivative");
    const int64_t of_value = Fp8Source{source.x, source.activation}.cols();
    expect_blocked(target.value, Fp8Blocks::kLine, {of_value, rows});
    expect_dtype(target.value.matrix.dtype, DType::kFloat8E4M3, "fp8_quantize_blocks: value");
  }
  if (!target.sums.is_null()) {
    expect_shape(target.sums.shape, {blocks_in(rows), cols}, "fp8_quantize_blocks: sums");
  }
}

}  // namespace

Shape fp8_scales_shape(Fp8Blocks blocks, const Shape& matrix) {
  switch (blocks) {
    case Fp8Blocks::kWhole:
      return {1};
    case Fp8Blocks::kRow:
      return {matrix[0]};
    case Fp8Blocks::kLine:
      return {blocks_in(matrix[1]), matrix[0]};
    case Fp8Blocks::kSquare:
      return {blocks_in(matrix[0]), (blocks_in(matrix[1]) + 3) / 4 * 4};
  }
  throw InternalError("fp8_scales_shape: unknown blocks");
}

void fp8_quantize_blocks(const Fp8BlockTarget& target, const Fp8Source& source, Stream stream) {
  expect_target(target, source);
  return dispatch<cpu::fp8_quantize_blocks, cuda::fp8_quantize_blocks>(kWho, target, source,
                                                                       stream);
}

}  // namespace megatron::kernels
