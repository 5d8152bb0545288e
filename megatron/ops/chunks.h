#pragma once

#include <cstdint>

#include "megatron/autograd/variable.h"

// Retro's re-layouts (Borgeaud et al. 2022, arXiv:2112.04426, sec. 2.3): permutations of rows,
// which save nothing.
//
// A sequence of s tokens has l = ceil(s / m) chunks of m tokens; the first chunk is the shorter
// one.
namespace megatron {

// The tokens of a chunk's column.
enum class ChunkRows {
  kOwn,      // the chunk itself
  kReaders,  // the m tokens that may see what was retrieved for it: from its last token on
};

// Cuts sequences into columns; the rows of a column that no token has are zero.
//
//   x  [s, b, h]     y  [m, b l, h], column (sample l + chunk)
//
// With kOwn, the first chunk has s - (l - 1) m tokens and zeros behind them. With kReaders, column
// c begins at token (s - 1) % m + c m, so that the last one has one token; earlier tokens are in
// none.
Variable split_chunks(const Variable& x, int64_t chunk_length, ChunkRows rows);

// The inverse: puts rows back to their tokens. Tokens that are in no column are zero.
//
//   y  [m, b l, h]   x  [length, b, h]
Variable join_chunks(const Variable& y, int64_t length, ChunkRows rows);

// Makes one column of the k neighbours of each chunk; row i of neighbour j becomes row i k + j.
//
//   x  [r, c k, h], column (chunk k + neighbour)     y  [r k, c, h]
Variable join_neighbors(const Variable& x, int64_t num_neighbors);

}  // namespace megatron
