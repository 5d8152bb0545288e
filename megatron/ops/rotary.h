#pragma once

#include "megatron/autograd/variable.h"

namespace megatron {

struct RotaryTableOptions {
  int64_t dim = 0;  // the d of the frequencies base^(-2i/d), i < ceil(d / 2)
  double base = 10000.0;
  double interpolation_factor = 1.0;  // positions are divided by it
  double llama3_scaling_factor =
      0.0;  // 0: none; else low frequencies are divided by it (Llama 3.1)
};

// Cosines and sines of positions [0, num_positions): [num_positions, ceil(dim / 2), 2] fp32.
Tensor rotary_table(int64_t num_positions, const RotaryTableOptions& options, Stream stream);

struct RotaryOptions {
  int64_t num_heads = 0;
  int64_t num_query_groups = 0;
  bool interleaved = false;
  int64_t position_offset = 0;  // of token 0, where there are no position_ids
  Tensor position_ids = {};     // [b, s] int64
};

// Rotates queries and keys inside a fused projection qkv [s, b, (n + 2g) d], overwriting its
// elements: nobody else may need them, as is so for the output of a linear layer. Saves the table
// alone. Throws ShapeError for a position outside the table.
Variable rotary_inplace(const Variable& qkv, const Tensor& table, const RotaryOptions& options);

}  // namespace megatron
