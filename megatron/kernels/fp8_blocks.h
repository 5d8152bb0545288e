#pragma once

#include <bit>
#include <cstdint>

#include "megatron/core/shape.h"
#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/device/host_device.h"
#include "megatron/kernels/fp8.h"
#include "megatron/kernels/fp8_scales.h"

// Quantisation to FP8 with a scale for each block of a matrix (DeepSeek-AI 2024, arXiv:2412.19437,
// sec. 3.3), so that a large number costs its neighbours precision, and no others. Scales are
// powers of two: an element changes only by its rounding.
namespace megatron::kernels {

// The elements that share a scale, and the shape of a matrix's [rows, cols] scales, in fp32. The
// layouts are those of cuBLASLt ("outer vector scaling", "128-element 1D and 128x128 2D block
// scaling").
enum class Fp8Blocks {
  kWhole,   // all of them                  [1]
  kRow,     // a row (fp8_rows.h)           [rows]
  kLine,    // 128 neighbours of a row      [ceil(cols / 128), rows]
  kSquare,  // 128 rows times 128 columns   [ceil(rows / 128), ceil(cols / 128) padded to 4 n]
};

inline constexpr int64_t kFp8Block = 128;

Shape fp8_scales_shape(Fp8Blocks blocks, const Shape& matrix);

// The place in the scales of element (row, col).
MG_HOST_DEVICE inline int64_t fp8_scale_place(Fp8Blocks blocks, int64_t row, int64_t col,
                                              int64_t rows, int64_t cols) {
  if (blocks == Fp8Blocks::kWhole) return 0;
  if (blocks == Fp8Blocks::kRow) return row;
  if (blocks == Fp8Blocks::kLine) return col / kFp8Block * rows + row;
  const int64_t of_row = (cols + 4 * kFp8Block - 1) / (4 * kFp8Block) * 4;
  return row / kFp8Block * of_row + col / kFp8Block;
}

// The scale of a block: the largest power of two that leaves amax at most `largest`; 1 if amax is 0
// or not finite. Neither the scale nor its inverse is subnormal.
MG_HOST_DEVICE inline float fp8_block_scale(float amax, float largest) {
  constexpr float kMost = 0x1p126f;
  const float scale = fp8_scale_of(amax, largest, 1.0f);
  if (scale >= kMost) return kMost;
#if defined(__CUDA_ARCH__)
  return __uint_as_float(__float_as_uint(scale) & 0x7f800000u);
#else
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0x7f800000u);
#endif
}

// A matrix in FP8 and the factors that decode its elements, 1 / scale of their blocks; a null view
// is not computed.
//   matrix [r, c] out FP8   inverses fp8_scales_shape() out fp32; padding is not written
struct Fp8Blocked {
  TensorView matrix = {};
  TensorView inverses = {};

  bool is_null() const { return matrix.is_null(); }
};

// The outputs computed from v [rows, cols] (Fp8Source).
//
//   rows     [rows, cols]           out
//   columns  [cols, rows]           out  the transpose; both have blocks along their own rows
//   value    [cols of act(x), rows] out  E4M3 in lines: act(x) transposed; v is a derivative
//   sums     Fp8Target::sums        out
struct Fp8BlockTarget {
  Fp8Blocks blocks = Fp8Blocks::kLine;  // of rows and columns; kSquare: only if v is x
  Fp8Blocked rows = {};
  Fp8Blocked columns = {};
  Fp8Blocked value = {};
  TensorView sums = {};
};

// One pass over v: a block has the scale of its own amax. Shapes and addresses as for
// fp8_quantize().
void fp8_quantize_blocks(const Fp8BlockTarget& target, const Fp8Source& source, Stream stream);

namespace cpu {
decltype(kernels::fp8_quantize_blocks) fp8_quantize_blocks;
}  // namespace cpu

namespace cuda {
decltype(kernels::fp8_quantize_blocks) fp8_quantize_blocks;
}  // namespace cuda

}  // namespace megatron::kernels
