#include "megatron/parallel/tensor/pieces.h"

#include <utility>
#include <vector>

#include "megatron/comm/collectives.h"

namespace megatron {

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

Tensor summed_by_pieces(const comm::Group& group, const std::function<Tensor(int rank)>& make) {
  const int ranks = group.size();
  const int own = group.rank();
  std::vector<Tensor> parts(static_cast<size_t>(ranks));  // of the sum, by rank
  std::vector<Tensor> sent;
  std::vector<comm::Pending> arrivals;
  for (int step = 1; step < ranks; ++step) {
    const int to = (own + step) % ranks;
    const int from = (own + ranks - step) % ranks;
    Tensor& piece = sent.emplace_back(make(to));
    Tensor& part = parts[static_cast<size_t>(from)] = empty_like(piece);
    const comm::Transfer transfers[] = {{piece.view(), to, true}, {part.view(), from, false}};
    arrivals.push_back(comm::start_exchange(transfers, group, piece.stream()));
  }
  parts[static_cast<size_t>(own)] = make(own);
  for (comm::Pending& arrival : arrivals) arrival.wait();
  Tensor sum = std::move(parts[0]);
  for (size_t rank = 1; rank < parts.size(); ++rank) add_inplace(sum, parts[rank]);
  return sum;
}

}  // namespace megatron
