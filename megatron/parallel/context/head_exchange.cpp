#include "megatron/parallel/context/head_exchange.h"

#include <utility>

#include "megatron/kernels/copy_heads.h"
#include "megatron/parallel/context/chunks.h"

namespace megatron {
namespace {

using kernels::ConstHeadsView;
using kernels::HeadsView;

// The parts of the last axis of x [tokens, b, cp w], for which chunk 0 goes through the group of
// rising ranks and chunk 1 through that of falling ones, so that whole sequences are in order.
// `parts` [cp, tokens/2, b, w] holds those of a chunk by position in its group.
HeadsView parts_by_position(Tensor& parts, size_t chunk) {
  const int64_t ranks = parts.size(0);
  const int64_t numel = parts.numel() / ranks;
  HeadsView view = kernels::heads_of(
      parts.slice(0, 1).reshape({parts.size(1), parts.size(2), parts.size(3)}).view(), 1);
  view.heads = ranks;
  view.stride_group = numel;
  if (chunk == 0) return view;
  view.data = static_cast<std::byte*>(view.data) + (ranks - 1) * numel * size_of(view.dtype);
  view.stride_group = -numel;
  return view;
}

const comm::Group& group_of(const ContextParallel& cp, size_t chunk) {
  return chunk == 0 ? cp.group : cp.mirrored;
}

// The piece of a chunk of x [s/cp, b, w], whose ranks' parts are heads.
template <class View>
auto piece_of_chunk(View x, const ExchangePiece& piece, size_t chunk, int64_t ranks) {
  const auto heads = kernels::heads_of(x, ranks);
  const int64_t length = heads.s / 2;
  auto part = tokens_of(heads, static_cast<int64_t>(chunk) * length, length);
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, std::byte, const std::byte>;
  const int64_t column = heads.d / piece.num_groups * piece.first_group;
  part.data = static_cast<Byte*>(part.data) +
              (heads.offset(piece.first_sample, 0) + column) * size_of(heads.dtype);
  part.b = piece.num_samples;
  part.d = heads.d / piece.num_groups * piece.groups;
  return part;
}

}  // namespace

SequenceToHeads::SequenceToHeads(ConstView x, const ExchangePiece& piece, const ContextParallel& cp,
                                 Stream stream) {
  const int64_t ranks = cp.size();
  const int64_t half = x.size(0) / 2 * ranks;  // of the sequence
  for (const size_t chunk : {size_t{0}, size_t{1}}) {
    const ConstHeadsView from = piece_of_chunk(x, piece, chunk, ranks);
    if (!y_.defined()) y_ = Tensor({2 * half, from.b, from.d}, x.dtype, stream);
    parts_[chunk] = Tensor({ranks, from.s, from.b, from.d}, x.dtype, stream);
    kernels::copy_heads(parts_by_position(parts_[chunk], chunk), from, stream);
    pending_[chunk] =
        comm::start_all_to_all(y_.slice(static_cast<int64_t>(chunk) * half, half).view(),
                               std::as_const(parts_[chunk]).view(), group_of(cp, chunk), stream);
  }
}

Tensor SequenceToHeads::take() {
  for (const size_t chunk : {size_t{0}, size_t{1}}) {
    pending_[chunk].wait_in_turn();
    parts_[chunk] = Tensor();
  }
  return std::move(y_);
}

HeadsToSequence::HeadsToSequence(Tensor x, const ExchangePiece& piece, const ContextParallel& cp)
    : x_(std::move(x)), piece_(piece) {
  const int64_t ranks = cp.size();
  const int64_t half = x_.size(0) / 2;
  for (const size_t chunk : {size_t{0}, size_t{1}}) {
    parts_[chunk] = Tensor({ranks, half / ranks, x_.size(1), x_.size(2)}, x_.dtype(), x_.stream());
    const Tensor sent = x_.slice(static_cast<int64_t>(chunk) * half, half);
    pending_[chunk] =
        comm::start_all_to_all(parts_[chunk].view(), sent.view(), group_of(cp, chunk), x_.stream());
  }
}

void HeadsToSequence::finish(TensorView y) {
  for (const size_t chunk : {size_t{0}, size_t{1}}) {
    pending_[chunk].wait_in_turn();
    kernels::copy_heads(piece_of_chunk(y, piece_, chunk, parts_[chunk].size(0)),
                        parts_by_position(parts_[chunk], chunk), x_.stream());
    parts_[chunk] = Tensor();
  }
  x_ = Tensor();
}

}  // namespace megatron
