#pragma once

#include <functional>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/tensor/tensor.h"

// Collectives cut into pieces: a product works on one piece while another travels
// (Wang et al. 2023, "Overlap Communication with Dependent Computation via Decomposition", ASPLOS,
// sec. 3). The sequence, the first axis, is spread over ranks; a piece is the slice of one rank.
// Pieces go directly from rank to rank.
namespace megatron {

// Minimum number of rows of a piece on a GPU: below it, the smaller kernels lose more time than the
// overlap saves. The CPU has no minimum.
inline constexpr int64_t kMinPieceRows = 1024;

// True if a slice [s/tp, .., features] of the sequence has enough rows, on the stream's device.
bool worth_overlapping(const Shape& slice, Stream stream);

// Uses or makes rows [first, first + n) of the whole sequence: one piece or several.
using UseRows = std::function<void(int64_t first, const Tensor& rows)>;
using MakeRows = std::function<void(int64_t first, Tensor& rows)>;

// Starts fetching every rank's x on construction: from the next rank, then from two more, then from
// four. There are few messages, and the first arrives early.
//
//   x [s/tp, ..]   ->   [s, ..]; this rank's slice is not written, since it is x
class GatheredPieces {
 public:
  GatheredPieces(const Tensor& x, const comm::Group& group);

  // Calls use() for all rows: this rank's first, then the others as they arrive.
  void for_each(const UseRows& use);
  // The same with at most three calls: this rank's rows, those before and those after.
  void for_stretches(const UseRows& use);
  // Later work of the stream waits for all pieces. A transport may fetch a piece only now;
  // collectives that the group starts later come after it.
  void wait();

 private:
  Tensor x_;
  comm::Group group_;
  Tensor whole_;
  std::vector<comm::Pending> arrivals_;
};

// The sum over ranks of the rows that they make for this rank. make() writes the rows of every
// rank, this rank's last, while the others travel. Sums in fp32, in the order of ranks, and rounds
// once.
//
//   shape [s, ..]   ->   [s/tp, ..]
Tensor summed_by_pieces(const Shape& shape, DType dtype, Stream stream, const comm::Group& group,
                        const MakeRows& make);

}  // namespace megatron
