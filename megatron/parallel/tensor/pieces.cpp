#include "megatron/parallel/tensor/pieces.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "megatron/kernels/elementwise.h"

namespace megatron {

int64_t num_pieces(const Shape& shape, Stream stream, int64_t at_most) {
  const int64_t rows = shape.numel() / std::max<int64_t>(shape[-1], 1);
  const int64_t fewest = stream.is_cpu() ? 1 : kFewestPieceRows;
  return std::clamp<int64_t>(std::min(rows / fewest, shape[0]), 1, at_most);
}

GatheredPieces::GatheredPieces(const Tensor& x, const comm::Group& group)
    : x_(x),
      group_(group),
      whole_(x.shape().with(0, x.size(0) * group.size()), x.dtype(), x.stream()) {
  const int ranks = group.size();
  for (int step = 1; step < ranks; ++step) {
    const int to = (group.rank() + ranks - step) % ranks;
    const int from = (group.rank() + step) % ranks;
    Tensor piece = piece_of(from);
    const comm::Transfer transfers[] = {{x_.view(), to, true}, {piece.view(), from, false}};
    arrivals_.push_back(comm::start_exchange(transfers, group, x.stream()));
  }
}

Tensor GatheredPieces::piece_of(int rank) const {
  return whole_.slice(rank * x_.size(0), x_.size(0));
}

void GatheredPieces::wait_for(int step) { arrivals_[static_cast<size_t>(step - 1)].wait(); }

void GatheredPieces::for_each(const std::function<void(int rank, const Tensor& piece)>& use) {
  use(group_.rank(), x_);
  for (int step = 1; step < group_.size(); ++step) {
    wait_for(step);
    const int rank = (group_.rank() + step) % group_.size();
    use(rank, piece_of(rank));
  }
}

void GatheredPieces::for_stretches(
    const std::function<void(int64_t first, const Tensor& rows)>& use) {
  const int64_t begin = group_.rank() * x_.size(0);
  const int64_t end = begin + x_.size(0);
  use(begin, x_);
  for (int step = 1; step < group_.size(); ++step) wait_for(step);
  if (begin > 0) use(0, whole_.slice(0, begin));
  if (end < whole_.size(0)) use(end, whole_.slice(end, whole_.size(0) - end));
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
