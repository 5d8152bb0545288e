#pragma once

#include <cstdint>

#include "megatron/autograd/variable.h"
#include "megatron/kernels/rotary.h"

namespace megatron {

// Parameters of rotary position embedding.
struct RotaryOptions {
  int64_t dim = 0;                  // required: rotated channels of a head
  double base = 10000;              // frequency i is base^(-2 i / dim)
  double interpolation_factor = 1;  // positions are divided by it
  // Llama 3's scaling (Dubey et al. 2024, arXiv:2407.21783): wavelengths above 8192 positions grow
  // by this factor, wavelengths below 2048 stay, and those between are blended. 1: no scaling
  double llama3_factor = 1;
};

// Cosines and sines of every angle, fp32 [num_positions, dim]: row p holds dim / 2 cosines, then
// dim / 2 sines. An odd dim has (dim + 1) / 2 frequencies and turns dim + 1 channels, as GPT-NeoX.
Tensor rotary_table(int64_t num_positions, const RotaryOptions& options);

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
