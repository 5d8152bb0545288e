#pragma once

#include "megatron/kernels/attention.h"

namespace megatron::kernels {

// The pairs of channels that are rotated.
enum class RotaryPairs {
  kHalves,       // (i, i + dim / 2)
  kInterleaved,  // (2 i, 2 i + 1)
};

// Rotates pairs of channels of every head by the angle of the token's position, in place (Su et al.
// 2021, arXiv:2104.09864): (x1, x2) becomes (x1 cos - x2 sin, x2 cos + x1 sin).
//
//   x             [s, b, heads]      in and out  fp32 | fp16 | bf16
//   table         [positions, dim]   in          fp32; dim / 2 cosines, then dim / 2 sines;
//                                                dim even, at most d: other channels stay
//   position_ids  [b, s]             in          int64, row of the table for a token; if null,
//                                                token i has position `offset` + i
//
// `inverse` rotates back, which is also the gradient. Computes in fp32. Throws ShapeError if the
// table is too short or too wide. A position id outside the table throws ShapeError on the CPU; on
// a GPU, which the host does not wait for, its token becomes NaN.
void rotary_inplace(HeadsView x, ConstView table, ConstView position_ids, int64_t offset,
                    RotaryPairs pairs, bool inverse, Stream stream);

namespace cpu {
decltype(kernels::rotary_inplace) rotary_inplace;
}  // namespace cpu

namespace cuda {
decltype(kernels::rotary_inplace) rotary_inplace;
}  // namespace cuda

}  // namespace megatron::kernels
