#include "megatron/parallel/context/exchanged_attention.h"

#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/parallel/context/head_exchange.h"
#include "megatron/parallel/context/ring_attention.h"

// Work is cut into halves of the samples, or of the heads if there is one sample. The second half
// arrives beside the attention of the first, and the first half goes back beside that of the
// second. A half is the whole sequence, or two chunks of it that attend around a ring.
namespace megatron {
namespace {

// A piece of the work, and its settings.
struct Piece {
  ExchangePiece exchange;
  AttentionOptions options;
  int64_t first_head;  // among those of the tensor-parallel rank
};

// The saved tensors of a piece for its backward pass.
struct SavedPiece {
  Tensor qkv;
  RingResult result;
};

// A piece's samples of the starts of documents, [batch, s] or, by chunk, [2, batch, s/2r].
Tensor starts_of(const Tensor& starts, int64_t batch, bool is_by_chunk,
                 const ExchangePiece& piece) {
  if (!is_by_chunk) return starts.slice(piece.first_sample, piece.num_samples);
  const Tensor rows = starts.reshape({2 * batch, starts.numel() / (2 * batch)});
  Tensor own({2 * piece.num_samples, rows.size(1)}, starts.dtype(), starts.stream());
  for (const int64_t chunk : {0, 1}) {
    Tensor to = own.slice(chunk * piece.num_samples, piece.num_samples);
    copy_into(to, rows.slice(chunk * batch + piece.first_sample, piece.num_samples));
  }
  return own;
}

std::vector<Piece> pieces_of(int64_t batch, const AttentionOptions& options,
                             const ContextParallel& cp, bool is_by_chunk) {
  const int64_t all_groups =
      options.num_query_groups != 0 ? options.num_query_groups : options.num_heads;
  invariant(options.num_heads % cp.size() == 0 && all_groups % cp.size() == 0,
            "ranks that exchange heads divide heads and groups evenly");
  const int64_t groups = all_groups / cp.size();
  const int64_t heads_per_group = options.num_heads / all_groups;
  const bool by_sample = batch > 1;
  const int64_t count = by_sample ? batch : groups;
  const int64_t first = (count + 1) / 2;
  std::vector<Piece> pieces;
  for (const auto& [begin, size] :
       {std::pair{int64_t{0}, first}, std::pair{first, count - first}}) {
    if (size == 0) continue;
    Piece piece{{.num_samples = batch, .groups = groups, .num_groups = groups}, options, 0};
    (by_sample ? piece.exchange.first_sample : piece.exchange.first_group) = begin;
    (by_sample ? piece.exchange.num_samples : piece.exchange.groups) = size;
    AttentionOptions& own = piece.options;
    own.num_query_groups = piece.exchange.groups;
    own.num_heads = own.num_query_groups * heads_per_group;
    const int64_t head = (cp.rank() * groups + piece.exchange.first_group) * heads_per_group;
    own.first_head += head;
    piece.first_head = head;
    if (own.alibi_slopes.defined()) {
      own.alibi_slopes = own.alibi_slopes.slice(head, own.num_heads);
    }
    if (own.document_starts.defined()) {
      own.document_starts = starts_of(own.document_starts, batch, is_by_chunk, piece.exchange);
    }
    invariant(own.dropout.parts_of_sample == 1, "ranks exchange whole samples");
    own.dropout.first_sample += piece.exchange.first_sample;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::vector<SequenceToHeads> started(ConstView x, const std::vector<Piece>& pieces,
                                     const ContextParallel& cp, Stream stream) {
  std::vector<SequenceToHeads> arriving;
  arriving.reserve(pieces.size());
  for (const Piece& piece : pieces) arriving.emplace_back(x, piece.exchange, cp, stream);
  return arriving;
}

SavedPiece attended(const Piece& piece, Tensor qkv, const ContextParallel& ring,
                    const Tensor& sinks) {
  const int64_t heads = piece.options.num_heads;
  const Tensor own = sinks.defined() ? sinks.slice(piece.first_head, heads) : Tensor();
  if (ring.size() > 1) {
    RingResult result = ring_forward(qkv, piece.options, ring, own);
    return {std::move(qkv), std::move(result)};
  }
  const Stream stream = qkv.stream();
  const auto in =
      kernels::split_qkv(std::as_const(qkv).view(), heads, piece.options.num_query_groups);
  Tensor y({in.q.s, in.q.b, heads * in.q.d}, qkv.dtype(), stream);
  Tensor lse({in.q.b, heads, in.q.s}, DType::kFloat32, stream);
  kernels::AttentionSettings settings = attention_settings(piece.options, in.q.d);
  if (own.defined()) settings.sinks = own.view();
  attention_without_gradient(kernels::heads_of(y.view(), heads), lse.view(), in.q, in.k, in.v,
                             settings, stream);
  return {std::move(qkv), {std::move(y), std::move(lse)}};
}

Tensor gradient_of(const Piece& piece, const SavedPiece& saved, const ContextParallel& ring,
                   const Tensor& dy) {
  const auto& [y, lse] = saved.result;
  if (ring.size() > 1) return ring_backward(saved.qkv, saved.result, dy, piece.options, ring);
  const int64_t heads = piece.options.num_heads;
  const int64_t groups = piece.options.num_query_groups;
  Tensor dqkv = empty_like(saved.qkv);
  const auto in = kernels::split_qkv(saved.qkv.view(), heads, groups);
  const auto grad = kernels::split_qkv(dqkv.view(), heads, groups);
  attention_gradients(grad.q, grad.k, grad.v, TensorView{}, kernels::heads_of(dy.view(), heads),
                      kernels::heads_of(y.view(), heads), lse.view(), in.q, in.k, in.v,
                      attention_settings(piece.options, in.q.d), dy.stream());
  return dqkv;
}

void add_sink_gradients(Tensor& dsinks, const Tensor& sinks, const Piece& piece,
                        const SavedPiece& saved, const Tensor& dy) {
  const int64_t heads = piece.options.num_heads;
  Tensor sum = dsinks.slice(piece.first_head, heads);
  add_inplace(sum, sink_gradients(sinks.slice(piece.first_head, heads), dy, saved.result.y,
                                  saved.result.lse));
}

// y [s/cp, b, w] of pieces x, which make_piece(i) computes; each goes back beside the next one.
template <class MakePiece>
Tensor given_back(const Shape& shape, const std::vector<Piece>& pieces, const ContextParallel& cp,
                  DType dtype, Stream stream, const MakePiece& make_piece) {
  std::vector<HeadsToSequence> leaving;
  Tensor y;
  for (size_t i = 0; i < pieces.size(); ++i) {
    Tensor x = make_piece(i);
    if (i > 0) {
      y = Tensor(shape, dtype, stream);
      leaving.back().finish(y.view());
    }
    leaving.emplace_back(std::move(x), pieces[i].exchange, cp);
  }
  if (!y.defined()) y = Tensor(shape, dtype, stream);
  leaving.back().finish(y.view());
  return y;
}

}  // namespace

Variable exchanged_attention(const Variable& qkv, const AttentionOptions& options,
                             const ContextParallel& cp, const Variable& sinks) {
  const TraceRange range("attention", qkv.stream());
  const Stream stream = qkv.stream();
  const ContextParallel heads = cp.heads();
  const ContextParallel ring = cp.ring();
  const std::vector<Piece> pieces = pieces_of(qkv.size(1), options, heads, ring.size() > 1);
  const int64_t groups =
      options.num_query_groups != 0 ? options.num_query_groups : options.num_heads;
  const int64_t head_size = qkv.size(2) / (options.num_heads + 2 * groups);
  std::vector<SequenceToHeads> arriving =
      started(std::as_const(qkv.data()).view(), pieces, heads, stream);
  std::vector<SavedPiece> saved;
  const Tensor scores = sinks.defined() ? sinks.data() : Tensor();
  Tensor y = given_back(qkv.shape().with(2, options.num_heads * head_size), pieces, heads,
                        qkv.dtype(), stream, [&](size_t i) {
                          saved.push_back(attended(pieces[i], arriving[i].take(), ring, scores));
                          return saved.back().result.y;
                        });
  return record(
      "exchanged_attention", y, {qkv, sinks},
      [pieces, saved, heads, ring, scores, shape = qkv.shape()](const Tensor& dy,
                                                                const Wants& wants) -> Grads {
        std::vector<SequenceToHeads> gradients = started(dy.view(), pieces, heads, dy.stream());
        Tensor dsinks =
            wants[1] ? zeros(scores.shape(), scores.dtype(), scores.stream()) : Tensor();
        Tensor dqkv = given_back(shape, pieces, heads, dy.dtype(), dy.stream(), [&](size_t i) {
          const Tensor own = gradients[i].take();
          if (wants[1]) add_sink_gradients(dsinks, scores, pieces[i], saved[i], own);
          return gradient_of(pieces[i], saved[i], ring, own);
        });
        return {std::move(dqkv), std::move(dsinks)};
      });
}

}  // namespace megatron
