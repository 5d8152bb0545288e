#pragma once

#include <cstdint>
#include <vector>

#include "megatron/autograd/variable.h"
#include "megatron/kernels/rotary.h"

namespace megatron {

// The angle of a pair of channels at a position is its frequency times the position.
struct RotaryFrequencies {
  std::vector<float> frequencies;   // required: one for each rotated pair
  double interpolation_factor = 1;  // positions are divided by it
  float magnitude = 1;              // factor of every cosine and sine
};

// Cosines and sines of every angle of `dim` / 2 pairs, fp32 [num_positions, dim]: row p holds
// dim / 2 cosines, then dim / 2 sines.
Tensor rotary_table(int64_t num_positions, const RotaryFrequencies& rotary);

// The positions of the tokens.
struct RotaryPositions {
  int64_t offset = 0;     // position of token 0 (the length of a cache)
  Tensor position_ids{};  // [b, s] int64, instead of offset + 0 .. s - 1; optional
};

// Rotates the query and key heads of a fused projection [s, b, (heads + 2 groups) d] in place: the
// result shares the memory of qkv, which may not be used again. Value heads stay. Saves only the
// table and position_ids.
Variable rotary_inplace(const Variable& qkv, int64_t heads, int64_t groups, const Tensor& table,
                        const RotaryPositions& positions, kernels::RotaryPairs pairs);

}  // namespace megatron
