#include "megatron/parallel/tensor/pieces.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "megatron/kernels/elementwise.h"

namespace megatron {
namespace {

// Neighbours in the ring of ranks, this one being step 0.
struct Batch {
  int first_step;
  int count;
};
// Groups all other ranks, in rising order, into batches of 1, 2, 4, ..
std::vector<Batch> batches_of(int ranks) {
  std::vector<Batch> batches;
  int size = 1;
  for (int step = 1; step < ranks; step += batches.back().count, size *= 2) {
    batches.push_back({step, std::min(size, ranks - step)});
  }
  return batches;
}

// Calls use(rank, count) for each stretch of adjacent ranks: once, or twice across the ring's end.
template <class F>
void for_neighbours(const Batch& batch, const comm::Group& group, const F& use) {
  const int first = (group.rank() + batch.first_step) % group.size();
  const int count = std::min(batch.count, group.size() - first);
  use(first, count);
  if (count < batch.count) use(0, batch.count - count);
}

}  // namespace

bool worth_overlapping(const Shape& slice, Stream stream) {
  const int64_t rows = slice.numel() / std::max<int64_t>(slice[-1], 1);
  return rows >= (stream.is_cpu() ? 1 : kMinPieceRows);
}

GatheredPieces::GatheredPieces(const Tensor& x, const comm::Group& group)
    : x_(x),
      group_(group),
      whole_(x.shape().with(0, x.size(0) * group.size()), x.dtype(), x.stream()) {
  const int ranks = group.size();
  const int64_t rows = x.size(0);
  for (const Batch& batch : batches_of(ranks)) {
    std::vector<comm::Transfer> transfers;
    for (int step = batch.first_step; step < batch.first_step + batch.count; ++step) {
      const int to = (group.rank() + ranks - step) % ranks;
      const int from = (group.rank() + step) % ranks;
      transfers.push_back({x_.view(), to, true});
      transfers.push_back({whole_.slice(from * rows, rows).view(), from, false});
    }
    arrivals_.push_back(comm::start_exchange(transfers, group, x.stream()));
  }
}

void GatheredPieces::for_each(const UseRows& use) {
  const int64_t rows = x_.size(0);
  use(group_.rank() * rows, x_);
  const std::vector<Batch> batches = batches_of(group_.size());
  for (size_t i = 0; i < batches.size(); ++i) {
    arrivals_[i].wait();
    for_neighbours(batches[i], group_, [&](int rank, int count) {
      use(rank * rows, whole_.slice(rank * rows, count * rows));
    });
  }
}

void GatheredPieces::for_stretches(const UseRows& use) {
  const int64_t begin = group_.rank() * x_.size(0);
  const int64_t end = begin + x_.size(0);
  use(begin, x_);
  wait();
  if (begin > 0) use(0, whole_.slice(0, begin));
  if (end < whole_.size(0)) use(end, whole_.slice(end, whole_.size(0) - end));
}

void GatheredPieces::wait() {
  for (comm::Pending& arrival : arrivals_) arrival.wait();
}

Tensor summed_by_pieces(const Shape& shape, DType dtype, Stream stream, const comm::Group& group,
                        const MakeRows& make) {
  const int ranks = group.size();
  const int64_t rows = shape[0] / ranks;
  const auto rows_of = [&](const Tensor& all, int place, int count) {
    return all.slice(place * rows, count * rows);
  };
  const Tensor parts(shape, dtype, stream);  // of the sum, by rank
  std::vector<Tensor> sent;
  std::vector<comm::Pending> arrivals;
  std::vector<Batch> batches = batches_of(ranks);
  std::reverse(batches.begin(), batches.end());  // the last one is small and travels fast
  for (const Batch& batch : batches) {
    const Tensor& pieces = sent.emplace_back(shape.with(0, batch.count * rows), dtype, stream);
    int place = 0;
    for_neighbours(batch, group, [&](int rank, int count) {
      Tensor part = rows_of(pieces, place, count);
      make(rank * rows, part);
      place += count;
    });
    std::vector<comm::Transfer> transfers;
    for (int i = 0; i < batch.count; ++i) {
      const int step = batch.first_step + i;
      const int to = (group.rank() + step) % ranks;
      const int from = (group.rank() + ranks - step) % ranks;
      transfers.push_back({rows_of(pieces, i, 1).view(), to, true});
      transfers.push_back({rows_of(parts, from, 1).view(), from, false});
    }
    arrivals.push_back(comm::start_exchange(transfers, group, stream));
  }
  Tensor own = rows_of(parts, group.rank(), 1);
  make(group.rank() * rows, own);
  for (comm::Pending& arrival : arrivals) arrival.wait();
  sent.clear();
  const Tensor sum(shape.with(0, rows), dtype, stream);
  kernels::sum_rows(sum.reshape({sum.numel()}).view(),
                    std::as_const(parts).reshape({ranks, sum.numel()}).view(), 0, stream);
  return sum;
}

}  // namespace megatron
