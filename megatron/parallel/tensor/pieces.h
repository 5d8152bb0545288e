#pragma once

#include <functional>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/tensor/tensor.h"

// Collectives cut in pieces, so that a product works on one piece while another one travels
// (Wang et al. 2023, "Overlap Communication with Dependent Computation via Decomposition", ASPLOS,
// sec. 3). Of a sequence that is spread over ranks, a piece is what belongs to one rank: slice
// `rank` of the first axis. Pieces go straight from rank to rank.
namespace megatron {

// Rows of a product that is worth a kernel of its own: with fewer, a GPU computes slower than the
// transfers beside it save. The CPU takes any number.
inline constexpr int64_t kFewestPieceRows = 1024;

// Of a slice [s/tp, .., features] of the sequence, on the stream's device.
bool is_worth_a_piece(const Shape& slice, Stream stream);

// Uses or makes rows [first, first + n) of the whole sequence, n those of one or more pieces.
using UseRows = std::function<void(int64_t first, const Tensor& rows)>;
using MakeRows = std::function<void(int64_t first, Tensor& rows)>;

// The x of all ranks, on their way from the start: of the next rank, then of two more, of four, so
// that there are few messages and the first is soon there.
//
//   x [s/tp, ..]   ->   [s, ..], where the slice of this rank is never written: that is x
class GatheredPieces {
 public:
  GatheredPieces(const Tensor& x, const comm::Group& group);

  // For all rows: this rank's own first, then the others as they come.
  void for_each(const UseRows& use);
  // The same in as few stretches as lie together: this rank's own, those before and those after.
  void for_stretches(const UseRows& use);
  // The stream's later work comes after all arrivals. A piece may be fetched only now: what is
  // started later in the group comes after it.
  void wait();

 private:
  Tensor x_;
  comm::Group group_;
  Tensor whole_;
  std::vector<comm::Pending> arrivals_;
};

// The sum over ranks of what they make for this one. make() writes the rows of every rank, this
// rank's own last, while the others travel. fp32 sums in the order of ranks, rounded once.
//
//   shape [s, ..]   ->   [s/tp, ..]
Tensor summed_by_pieces(const Shape& shape, DType dtype, Stream stream, const comm::Group& group,
                        const MakeRows& make);

}  // namespace megatron
