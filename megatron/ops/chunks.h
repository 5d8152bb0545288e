#pragma once

#include <cstdint>

#include "megatron/autograd/variable.h"

// Retro's changes of layout (Borgeaud et al. 2022, arXiv:2112.04426, sec. 2.3): permutations of
// rows, which save nothing.
//
// A sequence of s tokens has l = ceil(s / m) chunks of m tokens; the first chunk is the shorter
// one.
namespace megatron {

// Which tokens a chunk's column holds.
enum class ChunkRows {
  kOwn,      // the chunk itself
  kReaders,  // the m tokens, from its last one on, that may attend to its retrieved neighbours
};

// Cuts sequences into columns; the rows of a column that no token has are zero.
//
//   x  [s, b, h]     y  [m, b l, h], column (sample l + chunk)
//
// With kOwn, the first chunk has s - (l - 1) m tokens, followed by zeros. With kReaders, column c
// begins at token (s - 1) % m + c m, so that the last one has one token; earlier tokens are in
// none.
Variable split_chunks(const Variable& x, int64_t chunk_length, ChunkRows rows);

// The inverse: returns rows to their tokens. Tokens that are in no column are zero.
//
//   y  [m, b l, h]   x  [length, b, h]
Variable join_chunks(const Variable& y, int64_t length, ChunkRows rows);

// Makes one column of the k neighbours of each chunk; row i of neighbour j becomes row i k + j.
//
//   x  [r, c k, h], column (chunk k + neighbour)     y  [r k, c, h]
Variable join_neighbors(const Variable& x, int64_t num_neighbors);

}  // namespace megatron
