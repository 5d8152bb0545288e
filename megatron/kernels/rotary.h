#pragma once

#include "megatron/kernels/attention.h"

namespace megatron::kernels {

// Rotates the first 2 * pairs channels of every head (Su et al. 2021, arXiv:2104.09864, sec. 3.2):
// pair i of a token at position p turns by the angle whose cosine and sine are table[p, i].
//
//   x             [s, b, heads, d]  io  fp32 | fp16 | bf16; channels beyond the pairs stay
//   table         [p, pairs, 2]     in  fp32, cosine and sine
//   position_ids  [b, s]            in  int64 on the device of x, each below p; null: token i of
//                                       every sample is at position_offset + i
//
// A pair is channels (i, i + pairs), or (2i, 2i + 1) when interleaved. With `inverse` the angles
// are negated, which is the gradient. Computes in fp32 and rounds once.
struct RotarySettings {
  bool interleaved = false;
  bool inverse = false;
  int64_t position_offset = 0;
};
void rotate(const HeadsView& x, ConstView table, ConstView position_ids,
            const RotarySettings& settings, Stream stream);

namespace cpu {
void rotate(const HeadsView& x, ConstView table, ConstView position_ids,
            const RotarySettings& settings, Stream stream);
}  // namespace cpu

}  // namespace megatron::kernels
