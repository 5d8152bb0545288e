#include "megatron/parallel/context/head_exchange.h"

#include "megatron/comm/collectives.h"
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

// x [s/cp, b, w] -> [s, b, w/cp]
Tensor whole_sequence(const Tensor& x, const ContextParallel& cp) {
  const int64_t ranks = cp.size();
  const int64_t length = x.size(0) / 2;
  const int64_t width = x.size(2) / ranks;
  const ConstHeadsView from = kernels::heads_of(x.view(), ranks);
  Tensor y({ranks * x.size(0), x.size(1), width}, x.dtype(), x.stream());
  Tensor parts({ranks, length, x.size(1), width}, x.dtype(), x.stream());
  for (const size_t chunk : {size_t{0}, size_t{1}}) {
    const auto at = static_cast<int64_t>(chunk);
    kernels::copy_heads(parts_by_position(parts, chunk), tokens_of(from, at * length, length),
                        x.stream());
    comm::all_to_all(y.slice(at * ranks * length, ranks * length).view(),
                     std::as_const(parts).view(), group_of(cp, chunk), x.stream());
  }
  return y;
}

// x [s, b, w/cp] -> [s/cp, b, w]
Tensor own_chunks(const Tensor& x, const ContextParallel& cp) {
  const int64_t ranks = cp.size();
  const int64_t length = x.size(0) / (2 * ranks);
  const int64_t width = x.size(2);
  Tensor y({2 * length, x.size(1), ranks * width}, x.dtype(), x.stream());
  const HeadsView to = kernels::heads_of(y.view(), ranks);
  Tensor parts({ranks, length, x.size(1), width}, x.dtype(), x.stream());
  for (const size_t chunk : {size_t{0}, size_t{1}}) {
    const auto at = static_cast<int64_t>(chunk);
    const Tensor sent = x.slice(at * ranks * length, ranks * length);
    comm::all_to_all(parts.view(), sent.view(), group_of(cp, chunk), x.stream());
    kernels::copy_heads(tokens_of(to, at * length, length), parts_by_position(parts, chunk),
                        x.stream());
  }
  return y;
}

}  // namespace

Variable sequence_to_heads(const Variable& x, const ContextParallel& cp) {
  if (cp.size() == 1) return x;
  return record("sequence_to_heads", whole_sequence(x.data(), cp), {x},
                [cp](const Tensor& dy, const Wants&) -> Grads { return {own_chunks(dy, cp)}; });
}

Variable heads_to_sequence(const Variable& x, const ContextParallel& cp) {
  if (cp.size() == 1) return x;
  return record("heads_to_sequence", own_chunks(x.data(), cp), {x},
                [cp](const Tensor& dy, const Wants&) -> Grads { return {whole_sequence(dy, cp)}; });
}

}  // namespace megatron
