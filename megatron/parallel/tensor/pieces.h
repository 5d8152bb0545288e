#pragma once

#include <functional>

#include "megatron/parallel/parallel_context.h"
#include "megatron/tensor/tensor.h"

// Collectives over slices of the sequence, cut in as many pieces as there are ranks, so that a
// product works on one piece while another one travels (Wang et al. 2023, "Overlap Communication
// with Dependent Computation via Decomposition", ASPLOS, sec. 3). A piece is what belongs to one
// rank: slice `rank` of the first axis. Pieces go straight from rank to rank.
namespace megatron {

// use(rank, piece) for the x of every rank: this rank's own first, then the others as they come.
//
//   x [s/tp, ..] in   ->   [s, ..], where the slice of this rank is left undefined
Tensor gathered_by_pieces(const Tensor& x, const comm::Group& group,
                          const std::function<void(int rank, const Tensor& piece)>& use);

// The sum over ranks of what they make for this one: make(rank) [s/tp, ..] for every rank, this
// rank's own last, while the others travel. Summed in the order of ranks, rounded after each.
Tensor summed_by_pieces(const comm::Group& group, const std::function<Tensor(int rank)>& make);

}  // namespace megatron
