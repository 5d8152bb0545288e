#include "megatron/parallel/context/ring_attention.h"

#include <array>
#include <utility>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/copy_heads.h"
#include "megatron/parallel/context/chunks.h"
#include "megatron/parallel/context/head_sums.h"
#include "megatron/parallel/context/ring_plan.h"

// Step 0 is the attention of a rank's own two chunks, step i that of its queries to the block of
// the i-th rank before it. During a step the next block comes from the rank before, and the present
// one is sent to the next rank. The backward pass also sends the gradients of a block's keys and
// values to their rank, during the step after; the last ones travel beside a half of step 0 that
// was kept for that (of a part of it, if positions matter).
namespace megatron {
namespace {

using comm::Transfer;
using kernels::ConstHeadsView;
using kernels::HeadsView;
using kernels::Kv;

// The position in the group that is `steps` behind (or, if negative, before) this one.
int neighbour(const ContextParallel& cp, int steps) {
  return (cp.rank() + steps + cp.size()) % cp.size();
}

comm::Pending started(const std::vector<Transfer>& transfers, const ContextParallel& cp,
                      Stream stream) {
  return transfers.empty() ? comm::Pending() : comm::start_exchange(transfers, cp.group, stream);
}

// Between two ranks at most three terms meet, as in gathered_attention(), which rounds their sums.
bool sums_in_fp32(const ChunkedAttention& a) { return a.cp.size() > 2 || a.depends_on_positions(); }

// The block of keys and values that is at this rank, [s/cp, b, 2 g d], and the next one.
class KeyRing {
 public:
  KeyRing(const kernels::Qkv<ConstHeadsView>& in, const ChunkedAttention& a, Stream stream)
      : a_(a), own_{in.k, in.v} {
    for (Tensor& block : blocks_) {
      block = Tensor({in.k.s, in.k.b, 2 * in.k.heads * in.k.d}, in.k.dtype, stream);
    }
    const int64_t sent = num_sent_chunks(a_.cp.rank()) * a_.length;
    kernels::copy_heads(tokens_of(kernels::heads_of(blocks_[0].view(), in.k.heads), 0, sent),
                        tokens_of(joined(own_), 0, sent), stream);
  }

  // The messages of a step, which advance() must wait for.
  void add_transfers(std::vector<Transfer>& transfers) {
    if (step_ + 1 >= a_.cp.size()) return;
    transfers.push_back({sent(step_), neighbour(a_.cp, 1), true});
    transfers.push_back({sent(step_ + 1), neighbour(a_.cp, -1)});
  }
  Kv<ConstHeadsView> keys() {
    if (step_ == 0) return own_;
    return kernels::split_kv(std::as_const(block(step_)).view(), own_.k.heads);
  }
  void advance() { ++step_; }

 private:
  Tensor& block(int step) { return blocks_[static_cast<size_t>(step) % 2]; }
  // The part of a step's block that is sent around the ring.
  TensorView sent(int step) {
    return block(step).slice(0, num_sent_chunks(neighbour(a_.cp, -step)) * a_.length).view();
  }

  const ChunkedAttention& a_;
  Kv<ConstHeadsView> own_;
  std::array<Tensor, 2> blocks_;
  int step_ = 0;
};

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

ConstHeadsView queries_of(const RingPart& part, const ConstHeadsView& queries, int64_t length) {
  return tokens_of(queries, part.first_query * length, part.num_queries * length);
}

Kv<ConstHeadsView> keys_of(const RingPart& part, const Kv<ConstHeadsView>& block, int64_t length) {
  const int64_t begin = part.first_key * length;
  const int64_t count = part.num_keys * length;
  return {tokens_of(block.k, begin, count), tokens_of(block.v, begin, count)};
}

// lse [b, heads, s/cp]: a row of it is a token here, and a chunk of the row a head.
HeadsView chunks_of_rows(const Tensor& lse, int64_t num_chunks) {
  Tensor rows = lse.reshape({lse.size(0) * lse.size(1), 1, lse.size(2)});
  return kernels::heads_of(rows.view(), num_chunks);
}

std::vector<RingPart> parts_of_step(const ChunkedAttention& a, int step) {
  return ring_parts(a.cp.rank(), neighbour(a.cp, -step), a.cp.size(), a.depends_on_positions());
}

// --- Backward ---

// The gradients of other ranks' blocks, which go to them in the step after they are computed, and
// those of this rank's block, which come from them.
class GradientsHome {
 public:
  GradientsHome(const kernels::Qkv<ConstHeadsView>& in, const ChunkedAttention& a, Stream stream)
      : a_(a),
        groups_(in.k.heads),
        shape_({in.k.s, in.k.b, 2 * groups_ * in.k.d}),
        dtype_(in.k.dtype),
        stream_(stream) {}

  // Memory for those of the block of a step, as heads of joined() keys and values.
  HeadsView of_step(int step) {
    Tensor& gradients = sent_[static_cast<size_t>(step) % 2];
    if (!gradients.defined()) gradients = Tensor(shape_, dtype_, stream_);
    return kernels::heads_of(gradients.view(), groups_);
  }
  // The messages of what was computed in `step`.
  void add_transfers(int step, std::vector<Transfer>& transfers) {
    const ContextParallel& cp = a_.cp;
    const int to = neighbour(cp, -step);
    const int64_t seen = num_seen_chunks(cp.rank(), to) * a_.length;
    if (!received_.defined()) received_ = Tensor(shape_, dtype_, stream_);
    transfers.push_back({sent_[static_cast<size_t>(step) % 2].slice(0, seen).view(), to, true});
    transfers.push_back(
        {received_.slice(0, num_chunks_of(step) * a_.length).view(), neighbour(cp, step)});
  }
  // Adds what has come.
  void add_received(int step, HeadSums& own) const {
    const int64_t chunks = num_chunks_of(step);
    own.add({.num_chunks = chunks},
            tokens_of(kernels::heads_of(received_.view(), groups_), 0, chunks * a_.length));
  }

 private:
  // The chunks of this rank that the sender sees.
  int64_t num_chunks_of(int step) const {
    return num_seen_chunks(neighbour(a_.cp, step), a_.cp.rank());
  }

  const ChunkedAttention& a_;
  int64_t groups_;
  Shape shape_;
  DType dtype_;
  Stream stream_;
  std::array<Tensor, 2> sent_;
  Tensor received_;
};

// A call of attention: a part, or a half of its heads.
struct RingCall {
  RingPart part;
  int64_t half = 0, num_halves = 2;

  HeadsRegion queries() const { return {part.first_query, part.num_queries, half, num_halves}; }
  HeadsRegion keys() const { return {part.first_key, part.num_keys, half, num_halves}; }
};

// The calls for a rank's own block in the backward pass: at least two, if a part can be halved.
std::vector<RingCall> own_calls(const ChunkedAttention& a) {
  std::vector<RingCall> calls;
  for (const RingPart& part : parts_of_step(a, 0)) calls.push_back({part});
  if (calls.size() > 1) return calls;
  const RingPart part = calls[0].part;
  return {{part, 0, 1}, {part, 1, 1}};
}

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
    GradientsHome home(in_, a_, stream_);
    std::vector<RingCall> calls = own_calls(a_);
    const RingCall last_call = calls.back();
    calls.pop_back();
    const int last_step = a_.cp.size();
    for (int step = 0; step <= last_step; ++step) {
      std::vector<Transfer> transfers;
      ring.add_transfers(transfers);
      if (step > 1) home.add_transfers(step - 1, transfers);
      comm::Pending pending = started(transfers, a_.cp, stream_);
      if (step == 0) {
        for (const RingCall& call : calls) differentiate(call, ring.keys(), dq, own);
      } else if (step < last_step) {
        HeadSums sums(home.of_step(step), groups_, false, stream_);
        for (const RingPart& part : parts_of_step(a_, step)) {
          differentiate({part}, ring.keys(), dq, sums);
        }
        sums.finish();
        if (step + 1 < last_step) dq.settle();
      } else {
        differentiate(last_call, {in_.k, in_.v}, dq, own);
        own.settle();
      }
      pending.wait();
      if (step > 1) home.add_received(step - 1, own);
      ring.advance();
    }
    dq.finish();
    own.finish();
  }

 private:
  void differentiate(const RingCall& call, const Kv<ConstHeadsView>& block, HeadSums& dq,
                     HeadSums& sums) {
    const auto queries = [&](const ConstHeadsView& x) {
      return half_of_call(call, queries_of(call.part, x, a_.length));
    };
    const ConstHeadsView q = queries(in_.q);
    if (q.b * q.heads == 0) return;
    const Kv<ConstHeadsView> keys = keys_of(call.part, block, a_.length);
    const HeadsView q_term = dq.room(call.queries());
    const HeadsView kv_term = sums.room(call.keys());
    const Kv<HeadsView> terms = keys_and_values(kv_term);
    Tensor starts;
    attention_gradients(q_term, terms.k, terms.v, TensorView{}, queries(dy_), queries(y_),
                        ConstView(lse_of(call, q).view()), q, half_of_call(call, keys.k),
                        half_of_call(call, keys.v), settings_of(call.part, a_, in_.q.d, starts),
                        stream_);
    dq.add(call.queries(), q_term);
    sums.add(call.keys(), kv_term);
  }

  ConstHeadsView half_of_call(const RingCall& call, const ConstHeadsView& heads) const {
    return call.num_halves == 2 ? heads : half_of(heads, call.half, groups_);
  }

  // The log-sum-exp of the queries q of a call.
  Tensor lse_of(const RingCall& call, const ConstHeadsView& q) {
    if (call.part.num_queries == 1) {
      if (!lse_by_chunk_.defined()) separate_chunks();
      return lse_of_chunk(lse_by_chunk_, static_cast<size_t>(call.part.first_query));
    }
    const int64_t rows = q.b * q.heads;
    const int64_t all = lse_.size(0) * lse_.size(1);
    return lse_.reshape({all, lse_.size(2)})
        .slice(call.half == 0 ? 0 : all - rows, rows)
        .reshape({q.b, q.heads, q.s});
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

Variable ring_attention(const Variable& qkv, const AttentionOptions& options,
                        const ContextParallel& cp, const Variable& sinks) {
  const TraceRange range("attention", qkv.stream());
  const ChunkedAttention a(qkv.data(), options, cp);
  const int64_t heads = options.num_heads;
  const Stream stream = qkv.stream();
  const auto in = kernels::split_qkv(qkv.data().view(), heads, a.options.num_query_groups);
  Tensor y({in.q.s, in.q.b, heads * in.q.d}, qkv.dtype(), stream);
  Tensor lse({in.q.b, heads, in.q.s}, DType::kFloat32, stream);
  HeadSums outputs(kernels::heads_of(y.view(), heads), a.options.num_query_groups, sums_in_fp32(a),
                   stream);
  KeyRing ring(in, a, stream);
  for (int step = 0; step < cp.size(); ++step) {
    std::vector<Transfer> transfers;
    ring.add_transfers(transfers);
    comm::Pending pending = started(transfers, cp, stream);
    for (const RingPart& part : parts_of_step(a, step)) {
      const HeadsRegion region{part.first_query, part.num_queries};
      const bool is_first = !outputs.has_term(region);
      const ConstHeadsView q = queries_of(part, in.q, a.length);
      Tensor own_lse = lse;
      if (!is_first || q.s < in.q.s) own_lse = Tensor({q.b, heads, q.s}, DType::kFloat32, stream);
      const HeadsView term = outputs.room(region);
      const Kv<ConstHeadsView> keys = keys_of(part, ring.keys(), a.length);
      Tensor starts;
      attention_without_gradient(term, own_lse.view(), q, keys.k, keys.v,
                                 settings_of(part, a, in.q.d, starts), stream);
      if (is_first && q.s < in.q.s) {
        kernels::copy_heads(half_of(chunks_of_rows(lse, 2), part.first_query, 2),
                            chunks_of_rows(own_lse, 1), stream);
      }
      outputs.merge(region, term, lse.view(), own_lse);
    }
    if (step + 1 < cp.size()) outputs.settle();
    pending.wait();
    ring.advance();
  }
  outputs.finish();
  const Tensor scores = sinks.defined() ? sinks.data() : Tensor();
  if (scores.defined()) {
    kernels::add_attention_sinks(kernels::heads_of(y.view(), heads), lse.view(), scores.view(),
                                 stream);
  }
  return record(
      "ring_attention", y, {qkv, sinks},
      [a, qkv = qkv.data(), scores, y, lse](const Tensor& dy, const Wants& wants) -> Grads {
        Tensor dqkv = empty_like(qkv);
        RingGradients(a, qkv, y, lse, dy).run(dqkv);
        return {dqkv, wants[1] ? sink_gradients(scores, dy, y, lse) : Tensor()};
      });
}

}  // namespace megatron
