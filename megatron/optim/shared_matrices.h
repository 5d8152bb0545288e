#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/optim/flat_layout.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// A matrix in a bucket that ranks share equally, and the cost of working on the whole matrix.
struct SharedMatrix {
  FlatSpan span;    // of the flat buffer
  double cost = 0;  // in any unit
};

// The rank that has elements `span` of a matrix.
struct MatrixPiece {
  int rank = 0;
  FlatSpan span;  // of the matrix
};
// The pieces of a matrix, in the order of the ranks.
std::vector<MatrixPiece> pieces_of(const FlatSpan& matrix, const FlatSpan& bucket, int ranks);

// rounds[k][r]: the matrix that rank r takes in round k, or kNoMatrix. Assigns the most costly
// matrices first, each to the rank with the least work so far.
inline constexpr size_t kNoMatrix = static_cast<size_t>(-1);
std::vector<std::vector<size_t>> shared_rounds(std::span<const SharedMatrix> matrices, int ranks);

// Work on whole matrices by ranks that keep equal shares of their bucket (ZeRO stage 1 and later):
// one rank works on a matrix, gets the pieces of the others in fp32 and sends them back. A rank has
// one whole matrix at a time.
class SharedMatrices {
 public:
  // Every member of `ranks` calls it with the same matrices and bucket.
  SharedMatrices(std::vector<SharedMatrix> matrices, const FlatSpan& bucket, comm::Group ranks,
                 Stream stream);

  // `values` are elements `span` of a matrix, fp32.
  using OnPiece = std::function<void(size_t matrix, const FlatSpan& span, Tensor values)>;
  using OnMatrix = std::function<void(size_t matrix, Tensor values)>;
  // Calls `fill` for each piece of this rank, `work` for the matrices that it takes, whose values
  // it changes, and then `use` for each piece with its new values. Every member calls it.
  void run(const OnPiece& fill, const OnMatrix& work, const OnPiece& use) const;

 private:
  const std::vector<SharedMatrix> matrices_;
  const comm::Group ranks_;
  const Stream stream_;
  std::vector<std::vector<MatrixPiece>> pieces_;  // by matrix
  std::vector<std::vector<size_t>> rounds_;
};

}  // namespace megatron
