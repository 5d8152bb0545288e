#include "megatron/parallel/tensor/pieces.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/kernels/elementwise.h"

namespace megatron {

int64_t num_pieces(const Shape& shape, Stream stream, int64_t at_most) {
  const int64_t rows = shape.numel() / std::max<int64_t>(shape[-1], 1);
  const int64_t fewest = stream.is_cpu() ? 1 : kFewestPieceRows;
  return std::clamp<int64_t>(std::min(rows / fewest, shape[0]), 1, at_most);
}

Tensor gathered_by_pieces(const Tensor& x, const comm::Group& group,
                          const std::function<void(int rank, const Tensor& piece)>& use) {
  const int ranks = group.size();
  const int own = group.rank();
  const int64_t rows = x.size(0);
  const Tensor whole(x.shape().with(0, rows * ranks), x.dtype(), x.stream());
  const auto piece_of = [&](int rank) { return whole.slice(rank * rows, rows); };
  Tensor sent = x;
  std::vector<comm::Pending> arrivals;
  for (int step = 1; step < ranks; ++step) {
    Tensor piece = piece_of((own + step) % ranks);
    const comm::Transfer transfers[] = {{sent.view(), (own + ranks - step) % ranks, true},
                                        {piece.view(), (own + step) % ranks, false}};
    arrivals.push_back(comm::start_exchange(transfers, group, x.stream()));
  }
  use(own, x);
  for (int step = 1; step < ranks; ++step) {
    arrivals[static_cast<size_t>(step - 1)].wait();
    const int rank = (own + step) % ranks;
    use(rank, piece_of(rank));
  }
  return whole;
}

Tensor summed_by_pieces(const Shape& shape, DType dtype, Stream stream, const comm::Group& group,
                        const std::function<void(int rank, Tensor& part)>& make) {
  const int ranks = group.size();
  const int own = group.rank();
  const Shape piece_shape = shape.with(0, shape[0] / ranks);
  const Tensor parts(shape, dtype, stream);  // of the sum, by rank
  const auto part_of = [&](int rank) { return parts.slice(rank * piece_shape[0], piece_shape[0]); };
  std::vector<Tensor> sent;
  std::vector<comm::Pending> arrivals;
  for (int step = 1; step < ranks; ++step) {
    const int to = (own + step) % ranks;
    const int from = (own + ranks - step) % ranks;
    Tensor& piece = sent.emplace_back(piece_shape, dtype, stream);
    make(to, piece);
    Tensor part = part_of(from);
    const comm::Transfer transfers[] = {{piece.view(), to, true}, {part.view(), from, false}};
    arrivals.push_back(comm::start_exchange(transfers, group, stream));
  }
  Tensor part = part_of(own);
  make(own, part);
  for (comm::Pending& arrival : arrivals) arrival.wait();
  sent.clear();
  const Tensor sum(piece_shape, dtype, stream);
  kernels::sum_rows(sum.reshape({piece_shape.numel()}).view(),
                    std::as_const(parts).reshape({ranks, piece_shape.numel()}).view(), 0, stream);
  return sum;
}

}  // namespace megatron
