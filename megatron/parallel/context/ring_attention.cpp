#include "megatron/parallel/context/ring_attention.h"

#include <array>
#include <deque>
#include <utility>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/copy_heads.h"
#include "megatron/parallel/context/chunks.h"
#include "megatron/parallel/context/head_sums.h"
#include "megatron/parallel/context/ring_plan.h"

// Executes the steps of ring_plan.h.
namespace megatron {
namespace {

using kernels::ConstHeadsView;
using kernels::HeadsView;
using kernels::Kv;

Ring ring_of(const ChunkedAttention& a, const ConstHeadsView& q) {
  const bool by_position = a.depends_on_positions();
  return {.rank = a.cp.rank(),
          .size = a.cp.size(),
          .by_position = by_position,
          .halves_last_block = halves_last_ring_block(a.length, q.b, q.heads,
                                                      a.options.num_query_groups, by_position)};
}

// Between two ranks at most three terms meet, as in gathered_attention(), which rounds their sums.
bool sums_in_fp32(const ChunkedAttention& a) { return a.cp.size() > 2 || a.depends_on_positions(); }

// The step in which this rank attends to the block of `source`.
size_t step_of(int source, const ContextParallel& cp) {
  return static_cast<size_t>((cp.rank() - source + cp.size()) % cp.size());
}

// A message or a call is of all heads, or of a half of them.
template <class View, class Halved>
View heads_of_half(const View& heads, const Halved& halved, int64_t groups) {
  return halved.num_halves == 2 ? heads : half_of(heads, halved.half, groups);
}

// Memory for the joined() keys and values of a block: [b, groups, tokens, 2 d], so that the first
// chunks of a half of the heads are one range, which is sent without a copy.
class RingBlock {
 public:
  RingBlock() = default;
  RingBlock(const ConstHeadsView& k, Stream stream)
      : memory_({k.s * k.b * k.heads * 2 * k.d}, k.dtype, stream),
        length_(k.s / 2),
        batch_(k.b),
        groups_(k.heads),
        d_(2 * k.d) {}

  bool defined() const { return memory_.defined(); }
  // The heads of a block of which `num_chunks` are there.
  HeadsView heads(int64_t num_chunks) {
    const int64_t tokens = num_chunks * length_;
    return {.data = memory_.view().data,
            .dtype = memory_.dtype(),
            .s = tokens,
            .b = batch_,
            .heads = groups_,
            .d = d_,
            .stride_s = d_,
            .stride_b = groups_ * tokens * d_,
            .stride_group = tokens * d_};
  }
  TensorView message(const RingMessage& message) {
    const HeadsView part = heads_of_half(heads(message.num_chunks), message, groups_);
    return {part.data, {part.s * part.b * part.heads * part.d}, part.dtype};
  }

 private:
  Tensor memory_;
  int64_t length_ = 0, batch_ = 0, groups_ = 0, d_ = 0;
};

// The block of keys and values that is at this rank, and the next one.
class KeyRing {
 public:
  KeyRing(const kernels::Qkv<ConstHeadsView>& in, const ChunkedAttention& a, Stream stream)
      : cp_(a.cp), own_{in.k, in.v} {
    for (RingBlock& block : blocks_) block = RingBlock(in.k, stream);
    const int64_t sent = num_sent_chunks(cp_.rank());
    kernels::copy_heads(blocks_[0].heads(sent), tokens_of(joined(own_), 0, sent * a.length),
                        stream);
  }

  TensorView message(const RingMessage& message) { return block(message.source).message(message); }
  Kv<ConstHeadsView> keys(int source) {
    if (source == cp_.rank()) return own_;
    return keys_and_values(ConstHeadsView(block(source).heads(num_sent_chunks(source))));
  }

 private:
  RingBlock& block(int source) { return blocks_[step_of(source, cp_) % 2]; }

  const ContextParallel& cp_;
  Kv<ConstHeadsView> own_;
  std::array<RingBlock, 2> blocks_;
};

// The messages under way.
class RingMessages {
 public:
  RingMessages(const ContextParallel& cp, Stream stream) : cp_(cp), stream_(stream) {}

  // Starts those of a step, which must outlive this. memory_of(message) is a message's memory.
  template <class MemoryOf>
  void start(const RingStep& step, const MemoryOf& memory_of) {
    for (const std::vector<RingMessage>& batch : step.batches) {
      std::vector<comm::Transfer> transfers;
      transfers.reserve(batch.size());
      for (const RingMessage& message : batch) {
        transfers.push_back({memory_of(message), message.peer, message.is_send});
      }
      batches_.push_back({comm::start_exchange(transfers, cp_.group, stream_), &batch});
    }
  }
  // Waits as the step says, and calls arrived(message) for each that came.
  template <class Arrived>
  void wait(const RingStep& step, const Arrived& arrived) {
    while (batches_.size() > step.num_travelling) {
      batches_.front().pending.wait();
      for (const RingMessage& message : *batches_.front().messages) {
        if (!message.is_send) arrived(message);
      }
      batches_.pop_front();
    }
  }

 private:
  struct Batch {
    comm::Pending pending;
    const std::vector<RingMessage>* messages;
  };

  const ContextParallel& cp_;
  Stream stream_;
  std::deque<Batch> batches_;
};

HeadsRegion queries_of(const RingCall& call) {
  return {call.part.first_query, call.part.num_queries, call.half, call.num_halves};
}
HeadsRegion keys_of(const RingCall& call) {
  return {call.part.first_key, call.part.num_keys, call.half, call.num_halves};
}

// The queries of a call, of all of a rank, and its keys, of those of the block.
ConstHeadsView queries_of(const RingCall& call, const ConstHeadsView& queries, int64_t groups) {
  const int64_t length = queries.s / 2;
  const RingPart& part = call.part;
  return heads_of_half(tokens_of(queries, part.first_query * length, part.num_queries * length),
                       call, groups);
}
Kv<ConstHeadsView> keys_of(const RingCall& call, const Kv<ConstHeadsView>& block, int64_t length,
                           int64_t groups) {
  const auto of_call = [&](const ConstHeadsView& x) {
    const RingPart& part = call.part;
    return heads_of_half(tokens_of(x, part.first_key * length, part.num_keys * length), call,
                         groups);
  };
  return {of_call(block.k), of_call(block.v)};
}

// The rows of lse [b, heads, s] that are those of the queries q of a call.
Tensor rows_of(const RingCall& call, const ConstHeadsView& q, const Tensor& lse) {
  const int64_t rows = q.b * q.heads;
  const int64_t all = lse.size(0) * lse.size(1);
  return lse.reshape({all, lse.size(2)})
      .slice(call.half == 0 ? 0 : all - rows, rows)
      .reshape({q.b, q.heads, lse.size(2)});
}

kernels::AttentionSettings settings_of(const RingPart& part, const ChunkedAttention& a,
                                       int64_t head_size, Tensor& starts) {
  invariant(part.num_queries == 1 || !a.depends_on_positions(),
            "chunks that attend together do not depend on their positions");
  kernels::AttentionSettings made =
      a.settings(static_cast<size_t>(part.first_query), part.query_offset * a.length,
                 part.key_offset * a.length, head_size, starts);
  made.is_causal = part.is_causal;
  return made;
}

// lse [b, heads, s/cp]: a row of it is a token here, and a chunk of the row a head.
HeadsView chunks_of_rows(const Tensor& lse, int64_t num_chunks) {
  Tensor rows = lse.reshape({lse.size(0) * lse.size(1), 1, lse.size(2)});
  return kernels::heads_of(rows.view(), num_chunks);
}

// --- Backward ---

// The gradients of other ranks' blocks, which go to them in the step after they are computed, and
// those of this rank's block, which come from them.
class GradientsHome {
 public:
  GradientsHome(const ConstHeadsView& k, const ChunkedAttention& a, Stream stream)
      : k_(k), cp_(a.cp), stream_(stream) {}

  // Memory for those of a call, as two chunks, of which a hidden one has no memory.
  HeadsView room(const RingCall& call) {
    HeadsView room = block(call.source).heads(num_seen_chunks(cp_.rank(), call.source));
    room.s = k_.s;
    return heads_of_half(room, call, k_.heads);
  }
  TensorView message(const RingMessage& message) { return block(message.source).message(message); }
  // Adds what has come.
  void add(const RingMessage& message, HeadSums& own) {
    own.add({0, message.num_chunks, message.half, message.num_halves},
            heads_of_half(received_.heads(message.num_chunks), message, k_.heads));
  }

 private:
  RingBlock& block(int source) {
    const size_t step = step_of(source, cp_);
    RingBlock& block = step == 0 ? received_ : sent_[step % 2];
    if (!block.defined()) block = RingBlock(k_, stream_);
    return block;
  }

  ConstHeadsView k_;
  const ContextParallel& cp_;
  Stream stream_;
  std::array<RingBlock, 2> sent_;
  RingBlock received_;
};

class RingGradients {
 public:
  RingGradients(const ChunkedAttention& a, const Tensor& qkv, const Tensor& y, const Tensor& lse,
                const Tensor& dy)
      : a_(a),
        groups_(a.options.num_query_groups),
        stream_(qkv.stream()),
        in_(kernels::split_qkv(qkv.view(), a.options.num_heads, groups_)),
        y_(kernels::heads_of(y.view(), a.options.num_heads)),
        dy_(kernels::heads_of(dy.view(), a.options.num_heads)),
        lse_(lse) {}

  // Computes the gradient of qkv.
  void run(Tensor& dqkv) {
    const auto out = kernels::split_qkv(dqkv.view(), a_.options.num_heads, groups_);
    HeadSums dq(out.q, groups_, sums_in_fp32(a_), stream_);
    HeadSums own(joined(Kv<HeadsView>{out.k, out.v}), groups_, sums_in_fp32(a_), stream_);
    KeyRing ring(in_, a_, stream_);
    GradientsHome home(in_.k, a_, stream_);
    const std::vector<RingStep> steps = backward_steps(ring_of(a_, in_.q));
    RingMessages messages(a_.cp, stream_);
    for (size_t i = 0; i < steps.size(); ++i) {
      const RingStep& step = steps[i];
      messages.start(step, [&](const RingMessage& message) {
        return message.is_gradient ? home.message(message) : ring.message(message);
      });
      const RingCall& first = step.calls.front();
      if (first.source == a_.cp.rank()) {
        for (const RingCall& call : step.calls) {
          differentiate(call, keys_of(call), ring.keys(call.source), dq, own);
        }
        if (i > 0) own.settle();
      } else {
        HeadSums sums(home.room(first), groups_, false, stream_);
        for (const RingCall& call : step.calls) {
          const RingPart& part = call.part;
          differentiate(call, {part.first_key, part.num_keys}, ring.keys(call.source), dq, sums);
        }
        sums.finish();
        if (i + 2 < steps.size()) dq.settle(first.num_halves == 1);
      }
      messages.wait(step, [&](const RingMessage& message) {
        if (message.is_gradient) home.add(message, own);
      });
    }
    dq.finish();
    own.finish();
  }

 private:
  // Adds to dq, and to a region of the sums of keys and values.
  void differentiate(const RingCall& call, const HeadsRegion& region,
                     const Kv<ConstHeadsView>& block, HeadSums& dq, HeadSums& sums) {
    const ConstHeadsView q = queries_of(call, in_.q, groups_);
    if (q.b * q.heads == 0) return;
    const Kv<ConstHeadsView> keys = keys_of(call, block, a_.length, groups_);
    const HeadsView q_term = dq.room(queries_of(call));
    const HeadsView kv_term = sums.room(region);
    const Kv<HeadsView> terms = keys_and_values(kv_term);
    Tensor starts;
    attention_gradients(q_term, terms.k, terms.v, TensorView{}, queries_of(call, dy_, groups_),
                        queries_of(call, y_, groups_), ConstView(lse_of(call, q).view()), q, keys.k,
                        keys.v, settings_of(call.part, a_, in_.q.d, starts), stream_);
    dq.add(queries_of(call), q_term);
    sums.add(region, kv_term);
  }

  // The log-sum-exp of the queries q of a call.
  Tensor lse_of(const RingCall& call, const ConstHeadsView& q) {
    if (call.part.num_queries == 2) return rows_of(call, q, lse_);
    if (!lse_by_chunk_.defined()) separate_chunks();
    return rows_of(call, q,
                   lse_of_chunk(lse_by_chunk_, static_cast<size_t>(call.part.first_query)));
  }

  void separate_chunks() {
    lse_by_chunk_ = Tensor({2, lse_.size(0), lse_.size(1), a_.length}, DType::kFloat32, stream_);
    HeadsView to = chunks_of_rows(lse_of_chunk(lse_by_chunk_, 0), 1);
    to.heads = 2;
    to.stride_group = lse_.numel() / 2;
    kernels::copy_heads(to, chunks_of_rows(lse_, 2), stream_);
  }

  const ChunkedAttention& a_;
  int64_t groups_;
  Stream stream_;
  kernels::Qkv<ConstHeadsView> in_;
  ConstHeadsView y_, dy_;
  const Tensor& lse_;
  Tensor lse_by_chunk_;  // [2, b, heads, s/2cp]
};

}  // namespace

RingResult ring_forward(const Tensor& qkv, const AttentionOptions& options,
                        const ContextParallel& cp, const Tensor& sinks) {
  const ChunkedAttention a(qkv, options, cp);
  const int64_t heads = options.num_heads;
  const int64_t groups = a.options.num_query_groups;
  const Stream stream = qkv.stream();
  const auto in = kernels::split_qkv(qkv.view(), heads, groups);
  Tensor y({in.q.s, in.q.b, heads * in.q.d}, qkv.dtype(), stream);
  Tensor lse({in.q.b, heads, in.q.s}, DType::kFloat32, stream);
  HeadSums outputs(kernels::heads_of(y.view(), heads), groups, sums_in_fp32(a), stream);
  KeyRing ring(in, a, stream);
  const std::vector<RingStep> steps = forward_steps(ring_of(a, in.q));
  RingMessages messages(cp, stream);
  for (const RingStep& step : steps) {
    messages.start(step, [&](const RingMessage& message) { return ring.message(message); });
    for (const RingCall& call : step.calls) {
      const HeadsRegion region = queries_of(call);
      const bool is_first = !outputs.has_term(region);
      const ConstHeadsView q = queries_of(call, in.q, groups);
      Tensor own_lse = lse;
      if (!is_first || q.s < in.q.s) own_lse = Tensor({q.b, q.heads, q.s}, DType::kFloat32, stream);
      const HeadsView term = outputs.room(region);
      const Kv<ConstHeadsView> keys = keys_of(call, ring.keys(call.source), a.length, groups);
      Tensor starts;
      attention_without_gradient(term, own_lse.view(), q, keys.k, keys.v,
                                 settings_of(call.part, a, in.q.d, starts), stream);
      if (is_first && q.s < in.q.s) {
        kernels::copy_heads(half_of(chunks_of_rows(lse, 2), call.part.first_query, 2),
                            chunks_of_rows(own_lse, 1), stream);
      }
      outputs.merge(region, term, rows_of(call, q, lse).view(), own_lse);
    }
    if (&step != &steps.back()) outputs.settle(step.calls.front().num_halves == 1);
    messages.wait(step, [](const RingMessage&) {});
  }
  outputs.finish();
  if (sinks.defined()) {
    kernels::add_attention_sinks(kernels::heads_of(y.view(), heads), lse.view(), sinks.view(),
                                 stream);
  }
  return {y, lse};
}

Tensor ring_backward(const Tensor& qkv, const RingResult& result, const Tensor& dy,
                     const AttentionOptions& options, const ContextParallel& cp) {
  const ChunkedAttention a(qkv, options, cp);
  Tensor dqkv = empty_like(qkv);
  RingGradients(a, qkv, result.y, result.lse, dy).run(dqkv);
  return dqkv;
}

Variable ring_attention(const Variable& qkv, const AttentionOptions& options,
                        const ContextParallel& cp, const Variable& sinks) {
  const TraceRange range("attention", qkv.stream());
  const Tensor scores = sinks.defined() ? sinks.data() : Tensor();
  const RingResult result = ring_forward(qkv.data(), options, cp, scores);
  return record("ring_attention", result.y, {qkv, sinks},
                [options, cp, qkv = qkv.data(), scores, result](const Tensor& dy,
                                                                const Wants& wants) -> Grads {
                  return {ring_backward(qkv, result, dy, options, cp),
                          wants[1] ? sink_gradients(scores, dy, result.y, result.lse) : Tensor()};
                });
}

}  // namespace megatron
