#include "megatron/optim/shared_matrices.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/device/allocator.h"

namespace megatron {

std::vector<MatrixPiece> pieces_of(const FlatSpan& matrix, const FlatSpan& bucket, int ranks) {
  invariant(bucket.size() % ranks == 0, "a bucket divides evenly among the ranks that share it");
  const int64_t share = bucket.size() / ranks;
  std::vector<MatrixPiece> pieces;
  for (int rank = 0; rank < ranks; ++rank) {
    const int64_t begin = std::max(matrix.begin, bucket.begin + rank * share);
    const int64_t end = std::min(matrix.end, bucket.begin + (rank + 1) * share);
    if (begin < end) pieces.push_back({rank, {begin - matrix.begin, end - matrix.begin}});
  }
  return pieces;
}

std::vector<std::vector<size_t>> shared_rounds(std::span<const SharedMatrix> matrices, int ranks) {
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return matrices[a].cost > matrices[b].cost; });
  const auto count = static_cast<size_t>(ranks);
  std::vector<double> load(count);
  std::vector<size_t> taken(count);  // matrices so far
  std::vector<std::vector<size_t>> rounds;
  for (const size_t matrix : order) {
    const auto rank =
        static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    load[rank] += matrices[matrix].cost;
    const size_t round = taken[rank]++;
    if (round == rounds.size()) rounds.emplace_back(count, kNoMatrix);
    rounds[round][rank] = matrix;
  }
  return rounds;
}

SharedMatrices::SharedMatrices(std::vector<SharedMatrix> matrices, const FlatSpan& bucket,
                               comm::Group ranks, Stream stream)
    : matrices_(std::move(matrices)),
      ranks_(std::move(ranks)),
      stream_(stream),
      rounds_(shared_rounds(matrices_, ranks_.size())) {
  for (const SharedMatrix& matrix : matrices_) {
    pieces_.push_back(pieces_of(matrix.span, bucket, ranks_.size()));
  }
}

void SharedMatrices::run(const OnPiece& fill, const OnMatrix& work, const OnPiece& use) const {
  const MemoryScope scope(MemoryCategory::kWorkspace);
  const int me = ranks_.rank();
  struct Own {
    size_t matrix = 0;
    int owner = 0;
    FlatSpan span;
    Tensor values;
  };
  for (const std::vector<size_t>& round : rounds_) {
    const size_t mine = round[static_cast<size_t>(me)];
    Tensor whole;
    if (mine != kNoMatrix) whole = Tensor({matrices_[mine].span.size()}, DType::kFloat32, stream_);
    const auto part_of_whole = [&](const FlatSpan& span) {
      return whole.slice(span.begin, span.size());
    };
    std::vector<Own> own;
    for (int owner = 0; owner < ranks_.size(); ++owner) {
      const size_t matrix = round[static_cast<size_t>(owner)];
      if (matrix == kNoMatrix) continue;
      for (const MatrixPiece& piece : pieces_[matrix]) {
        if (piece.rank != me) continue;
        Tensor values = owner == me ? part_of_whole(piece.span)
                                    : Tensor({piece.span.size()}, DType::kFloat32, stream_);
        fill(matrix, piece.span, values);
        own.push_back({matrix, owner, piece.span, values});
      }
    }
    const auto exchange = [&](bool is_to_owner) {
      std::vector<comm::Transfer> transfers;
      for (Own& piece : own) {
        if (piece.owner != me) transfers.push_back({piece.values.view(), piece.owner, is_to_owner});
      }
      if (mine != kNoMatrix) {
        for (const MatrixPiece& piece : pieces_[mine]) {
          if (piece.rank == me) continue;
          Tensor values = part_of_whole(piece.span);
          transfers.push_back({values.view(), piece.rank, !is_to_owner});
        }
      }
      comm::exchange(transfers, ranks_, stream_);
    };
    exchange(true);
    if (mine != kNoMatrix) work(mine, whole);
    exchange(false);
    for (const Own& piece : own) use(piece.matrix, piece.span, piece.values);
  }
}

}  // namespace megatron
