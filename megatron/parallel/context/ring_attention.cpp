#include "megatron/parallel/context/ring_attention.h"

#include <array>
#include <utility>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/copy_heads.h"
#include "megatron/parallel/context/chunks.h"
#include "megatron/parallel/context/head_sums.h"
#include "megatron/parallel/context/ring_plan.h"

// Step 0 is the attention of a rank's own two chunks, step i that of its queries to the block of
// the i-th rank before it. During a step the next block comes from the rank before, and the present
// one goes on to the rank behind. The backward pass also sends the gradients of a block's keys and
// values to their rank, during the step after; the last ones travel beside a part of step 0 that
// was kept for that.
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
  KeyRing(const kernels::Qkv<ConstHeadsView>& in, const ContextParallel& cp, Stream stream)
      : cp_(cp), groups_(in.k.heads) {
    for (Tensor& block : blocks_) {
      block = Tensor({in.k.s, in.k.b, 2 * groups_ * in.k.d}, in.k.dtype, stream);
    }
    const Kv<HeadsView> own = kernels::split_kv(blocks_[0].view(), groups_);
    kernels::copy_heads(own.k, in.k, stream);
    kernels::copy_heads(own.v, in.v, stream);
  }

  // The messages of a step, which advance() must wait for.
  void add_transfers(std::vector<Transfer>& transfers) {
    if (step_ + 1 >= cp_.size()) return;
    transfers.push_back({present().view(), neighbour(cp_, 1), true});
    transfers.push_back({blocks_[static_cast<size_t>(step_ + 1) % 2].view(), neighbour(cp_, -1)});
  }
  Kv<ConstHeadsView> keys() { return kernels::split_kv(ConstView(present().view()), groups_); }
  void advance() { ++step_; }

 private:
  Tensor& present() { return blocks_[static_cast<size_t>(step_) % 2]; }

  ContextParallel cp_;
  int64_t groups_;
  std::array<Tensor, 2> blocks_;
  int step_ = 0;
};

kernels::AttentionSettings settings_of(const RingPart& part, const ChunkedAttention& a,
                                       int64_t head_size, Tensor& starts) {
  kernels::AttentionSettings made = a.settings(part.queries, part.query_offset * a.length,
                                               part.key_offset * a.length, head_size, starts);
  made.is_causal = part.is_causal;
  return made;
}

Kv<ConstHeadsView> keys_of(const RingPart& part, const Kv<ConstHeadsView>& block, int64_t length) {
  const int64_t begin = part.first_key * length;
  const int64_t count = part.num_keys * length;
  return {tokens_of(block.k, begin, count), tokens_of(block.v, begin, count)};
}

std::vector<RingPart> parts_of_step(const ChunkedAttention& a, int step) {
  return ring_parts(a.cp.rank(), neighbour(a.cp, -step), a.cp.size(), a.depends_on_positions());
}

// --- Backward ---

// The sums of the gradients of a block's keys and values.
struct KeySums {
  HeadSums k, v;

  KeySums(const Kv<HeadsView>& out, bool in_fp32, Stream stream)
      : k(out.k, in_fp32, stream), v(out.v, in_fp32, stream) {}
  void add(int64_t count, const Kv<ConstHeadsView>& terms) {
    k.add(0, count, tokens_of(terms.k, 0, count * terms.k.s / 2));
    v.add(0, count, tokens_of(terms.v, 0, count * terms.v.s / 2));
  }
};

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

  // Memory for those of the block of a step.
  Kv<HeadsView> of_step(int step) {
    Tensor& gradients = sent_[static_cast<size_t>(step) % 2];
    if (!gradients.defined()) gradients = Tensor(shape_, dtype_, stream_);
    return kernels::split_kv(gradients.view(), groups_);
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
  void add_received(int step, KeySums& own) const {
    own.add(num_chunks_of(step), kernels::split_kv(received_.view(), groups_));
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

class RingGradients {
 public:
  RingGradients(const ChunkedAttention& a, const Tensor& qkv, const Tensor& y, const Tensor& lse,
                const Tensor& dy)
      : a_(a),
        stream_(qkv.stream()),
        in_(kernels::split_qkv(qkv.view(), a.options.num_heads, a.options.num_query_groups)),
        y_(kernels::heads_of(y.view(), a.options.num_heads)),
        dy_(kernels::heads_of(dy.view(), a.options.num_heads)),
        lse_(lse) {}

  // Of qkv.
  void run(Tensor& dqkv) {
    const auto out =
        kernels::split_qkv(dqkv.view(), a_.options.num_heads, a_.options.num_query_groups);
    HeadSums dq(out.q, sums_in_fp32(a_), stream_);
    KeySums own({out.k, out.v}, sums_in_fp32(a_), stream_);
    KeyRing ring(in_, a_.cp, stream_);
    GradientsHome home(in_, a_, stream_);
    std::vector<RingPart> own_parts = parts_of_step(a_, 0);
    const RingPart last_part = own_parts.back();
    own_parts.pop_back();
    for (int step = 0; step <= a_.cp.size(); ++step) {
      std::vector<Transfer> transfers;
      ring.add_transfers(transfers);
      if (step > 1) home.add_transfers(step - 1, transfers);
      comm::Pending pending = started(transfers, a_.cp, stream_);
      if (step == 0) {
        for (const RingPart& part : own_parts) differentiate(part, ring.keys(), dq, own);
      } else if (step < a_.cp.size()) {
        KeySums sums(home.of_step(step), false, stream_);
        for (const RingPart& part : parts_of_step(a_, step)) {
          differentiate(part, ring.keys(), dq, sums);
        }
      } else {
        differentiate(last_part, {in_.k, in_.v}, dq, own);
      }
      pending.wait();
      if (step > 1) home.add_received(step - 1, own);
      ring.advance();
    }
    dq.finish();
    own.k.finish();
    own.v.finish();
  }

 private:
  void differentiate(const RingPart& part, const Kv<ConstHeadsView>& block, HeadSums& dq,
                     KeySums& sums) {
    const int64_t n = a_.length;
    const auto chunk = static_cast<int64_t>(part.queries);
    const Kv<ConstHeadsView> keys = keys_of(part, block, n);
    const HeadsView q_term = dq.room(chunk, 1);
    const HeadsView k_term = sums.k.room(part.first_key, part.num_keys);
    const HeadsView v_term = sums.v.room(part.first_key, part.num_keys);
    Tensor starts;
    attention_gradients(q_term, k_term, v_term, TensorView{}, tokens_of(dy_, chunk * n, n),
                        tokens_of(y_, chunk * n, n),
                        ConstView(lse_of_chunk(lse_, part.queries).view()),
                        tokens_of(in_.q, chunk * n, n), keys.k, keys.v,
                        settings_of(part, a_, in_.q.d, starts), stream_);
    dq.add(chunk, 1, q_term);
    sums.k.add(part.first_key, part.num_keys, k_term);
    sums.v.add(part.first_key, part.num_keys, v_term);
  }

  const ChunkedAttention& a_;
  Stream stream_;
  kernels::Qkv<ConstHeadsView> in_;
  ConstHeadsView y_, dy_;
  const Tensor& lse_;
};

}  // namespace

Variable ring_attention(const Variable& qkv, const AttentionOptions& options,
                        const ContextParallel& cp) {
  const TraceRange range("attention", qkv.stream());
  const ChunkedAttention a(qkv.data(), options, cp);
  const int64_t n = a.length;
  const int64_t heads = options.num_heads;
  const Stream stream = qkv.stream();
  const auto in = kernels::split_qkv(qkv.data().view(), heads, a.options.num_query_groups);
  Tensor y({in.q.s, in.q.b, heads * in.q.d}, qkv.dtype(), stream);
  Tensor lse({2, in.q.b, heads, n}, DType::kFloat32, stream);
  HeadSums outputs(kernels::heads_of(y.view(), heads), sums_in_fp32(a), stream);
  KeyRing ring(in, cp, stream);
  Tensor term_lse;
  for (int step = 0; step < cp.size(); ++step) {
    std::vector<Transfer> transfers;
    ring.add_transfers(transfers);
    comm::Pending pending = started(transfers, cp, stream);
    for (const RingPart& part : parts_of_step(a, step)) {
      const auto chunk = static_cast<int64_t>(part.queries);
      const bool is_first = !outputs.has_term(chunk);
      if (!is_first && !term_lse.defined()) {
        term_lse = Tensor({in.q.b, heads, n}, DType::kFloat32, stream);
      }
      Tensor own_lse = lse_of_chunk(lse, part.queries);
      const HeadsView term = outputs.room(chunk, 1);
      const Kv<ConstHeadsView> keys = keys_of(part, ring.keys(), n);
      Tensor starts;
      attention_without_gradient(term, is_first ? own_lse.view() : term_lse.view(),
                                 tokens_of(in.q, chunk * n, n), keys.k, keys.v,
                                 settings_of(part, a, in.q.d, starts), stream);
      outputs.merge(chunk, term, own_lse.view(),
                    is_first ? ConstView{} : std::as_const(term_lse).view());
    }
    pending.wait();
    ring.advance();
  }
  outputs.finish();
  return record("ring_attention", y, {qkv},
                [a, qkv = qkv.data(), y, lse](const Tensor& dy, const Wants&) -> Grads {
                  Tensor dqkv = empty_like(qkv);
                  RingGradients(a, qkv, y, lse, dy).run(dqkv);
                  return {dqkv};
                });
}

}  // namespace megatron
