#pragma once

#include <array>

#include "megatron/comm/collectives.h"
#include "megatron/kernels/attention.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/tensor/tensor.h"

// A part of the sequence of all heads against the whole sequence of a part of the heads, by two
// all-to-alls, one for each chunk of a rank, beside the stream's other work.
//
//   SequenceToHeads   x [s/cp, b, w] -> y [s, b', w'/cp]
//   HeadsToSequence   x [s, b', w'/cp] -> y [s/cp, b, w]
//
// Rank i has part i of the last axis. A piece is some of the samples (b' of b), or of the columns
// of each rank's part (w' of w).
namespace megatron {

struct ExchangePiece {
  int64_t first_sample = 0, num_samples = 0;
  // The piece of a rank's heads, as a fraction of `num_groups`.
  int64_t first_group = 0, groups = 0, num_groups = 1;
};

class SequenceToHeads {
 public:
  // Starts. x may change as soon as the stream's work so far is done.
  SequenceToHeads(ConstView x, const ExchangePiece& piece, const ContextParallel& cp,
                  Stream stream);
  // Waits. Call it once.
  Tensor take();

 private:
  Tensor y_;
  std::array<Tensor, 2> parts_;  // by chunk
  std::array<comm::Pending, 2> pending_;
};

class HeadsToSequence {
 public:
  // Starts.
  HeadsToSequence(Tensor x, const ExchangePiece& piece, const ContextParallel& cp);
  // Waits, and writes the piece of y.
  void finish(TensorView y);

 private:
  Tensor x_;
  ExchangePiece piece_;
  std::array<Tensor, 2> parts_;
  std::array<comm::Pending, 2> pending_;
};

}  // namespace megatron
