#pragma once

#include <cstdint>
#include <utility>

#include "megatron/autograd/variable.h"
#include "megatron/ops/rotary.h"

namespace megatron {

// The sizes of the heads of latent attention (DeepSeek-V2, arXiv:2405.04434, sec. 2.1).
struct LatentHeads {
  int64_t num_heads = 0;  // n, of this rank
  int64_t unrotated = 0;  // channels of queries and keys without position
  int64_t rotated = 0;    // and with; the keys of all heads have the same
  int64_t value = 0;      // channels of values

  int64_t key() const { return unrotated + rotated; }
  // One size for all heads, so that any attention kernel reads them: smaller heads end with zeros.
  int64_t padded() const { return key() > value ? key() : value; }
};

// The fused projection of latent attention, as attention() reads it: n groups of one head.
//
//   q        [s, b, n (unrotated + rotated)]  per head first the unrotated channels
//   kv       [s, b, n (unrotated + value)]    per head its key, then its value
//   key      [s, b, rotated]                  not rotated
//   table    [positions, rotated] fp32        kernels/rotary.h, of interleaved pairs;
//                                             undefined: nothing is rotated
//   y        [s, b, 3 n padded]               dtype of q; queries and keys rotated
//
// Saves only the table and the position ids.
Variable join_latent_heads(const Variable& q, const Variable& kv, const Variable& key,
                           const LatentHeads& heads, const Tensor& table,
                           const RotaryPositions& positions);

// The first `count` of the channels of each head: [s, b, n d] -> [s, b, n count]; x itself if they
// are all. Saves nothing.
Variable first_channels(const Variable& x, int64_t num_heads, int64_t count);

// The first `count` of the channels, and the others: [s, b, c] -> [s, b, count], [s, b, c - count].
// Saves nothing.
std::pair<Variable, Variable> split_channels(const Variable& x, int64_t count);

// The inverse: [s, b, c], [s, b, d] -> [s, b, c + d]. Saves nothing.
Variable join_channels(const Variable& x, const Variable& y);

}  // namespace megatron
