#include "megatron/parallel/context/gathered_attention.h"

#include <array>

#include "megatron/comm/collectives.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/copy_heads.h"
#include "megatron/parallel/context/chunks.h"

namespace megatron {
namespace {

using kernels::ConstHeadsView;

// Keys that the queries of a chunk see: all up to its end.
int64_t num_keys(const ChunkedAttention& a, size_t half) {
  return (a.cp.chunks()[half] + 1) * a.length;
}

kernels::AttentionSettings settings_of(const ChunkedAttention& a, size_t half, int64_t head_size,
                                       Tensor& starts) {
  return a.settings(half, a.cp.chunks()[half] * a.length, 0, head_size, starts);
}

// Keys and values of the whole sequence, [s, b, 2 g d] as kernels::split_kv wants them, on their
// way from the ranks.
class GatheredKeys {
 public:
  GatheredKeys(const kernels::Qkv<ConstHeadsView>& in, const ChunkedAttention& a, Stream stream)
      : own_({in.k.s, in.k.b, 2 * in.k.heads * in.k.d}, in.k.dtype, stream),
        all_(own_.shape().with(0, a.whole()), own_.dtype(), stream) {
    const auto own = kernels::split_kv(own_.view(), in.k.heads);
    kernels::copy_heads(own.k, in.k, stream);
    kernels::copy_heads(own.v, in.v, stream);
    const int64_t n = a.length;
    const int64_t half = a.whole() / 2;
    const ContextParallel& cp = a.cp;
    const Tensor first = own_.slice(0, n);
    const Tensor second = own_.slice(n, n);
    pending_[0] =
        comm::start_all_gather(all_.slice(0, half).view(), first.view(), cp.group, stream);
    pending_[1] =
        comm::start_all_gather(all_.slice(half, half).view(), second.view(), cp.mirrored, stream);
  }

  // The keys and values that a chunk sees. Call it for the first chunk first.
  kernels::Kv<ConstHeadsView> of_chunk(size_t half, const ChunkedAttention& a) {
    pending_[half].wait_in_turn();
    const Tensor seen = all_.slice(0, num_keys(a, half));
    return kernels::split_kv(seen.view(), a.options.num_query_groups);
  }

 private:
  Tensor own_;
  Tensor all_;
  std::array<comm::Pending, 2> pending_;
};

Tensor gradients(const ChunkedAttention& a, const Tensor& qkv, const Tensor& y, const Tensor& lse,
                 const Tensor& dy) {
  const int64_t n = a.length;
  const int64_t heads = a.options.num_heads;
  const int64_t groups = a.options.num_query_groups;
  const Stream stream = qkv.stream();
  const auto in = kernels::split_qkv(qkv.view(), heads, groups);
  Tensor dqkv = empty_like(qkv);
  const auto out = kernels::split_qkv(dqkv.view(), heads, groups);
  GatheredKeys keys(in, a, stream);

  std::array<Tensor, 2> dkv;  // of the keys that each chunk sees
  for (const size_t half : {size_t{0}, size_t{1}}) {
    const int64_t at = static_cast<int64_t>(half) * n;
    const int64_t seen = half == 0 ? num_keys(a, 0) : a.whole();
    const Shape shape = {seen, in.q.b, 2 * groups * in.q.d};
    // The second chunk's gradient is summed over ranks: it has room for all keys, and is 0 for keys
    // that the chunk does not see.
    dkv[half] = num_keys(a, half) == seen ? Tensor(shape, qkv.dtype(), stream)
                                          : zeros(shape, qkv.dtype(), stream);
    Tensor part = dkv[half].slice(0, num_keys(a, half));
    const auto grad = kernels::split_kv(part.view(), groups);
    const auto kv = keys.of_chunk(half, a);
    Tensor starts;
    attention_gradients(tokens_of(out.q, at, n), grad.k, grad.v, TensorView{},
                        tokens_of(kernels::heads_of(dy.view(), heads), at, n),
                        tokens_of(kernels::heads_of(y.view(), heads), at, n),
                        ConstView(lse_of_chunk(lse, half).view()), tokens_of(in.q, at, n), kv.k,
                        kv.v, settings_of(a, half, in.q.d, starts), stream);
  }

  const int64_t half_length = a.whole() / 2;
  Tensor own({2 * n, in.q.b, 2 * groups * in.q.d}, qkv.dtype(), stream);
  // Only second chunks see the second half of the keys.
  comm::Pending second = comm::start_reduce_scatter(own.slice(n, n).view(),
                                                    dkv[1].slice(half_length, half_length).view(),
                                                    comm::Reduce::kSum, a.cp.mirrored, stream);
  Tensor sum = dkv[1].slice(0, num_keys(a, 0));
  add_inplace(sum, dkv[0]);
  comm::reduce_scatter(own.slice(0, n).view(), dkv[1].slice(0, half_length).view(),
                       comm::Reduce::kSum, a.cp.group, stream);
  second.wait();
  const auto grad = kernels::split_kv(own.view(), groups);
  kernels::copy_heads(out.k, grad.k, stream);
  kernels::copy_heads(out.v, grad.v, stream);
  return dqkv;
}

}  // namespace

Variable gathered_attention(const Variable& qkv, const AttentionOptions& options,
                            const ContextParallel& cp, const Variable& sinks) {
  const TraceRange range("attention", qkv.stream());
  const ChunkedAttention a(qkv.data(), options, cp);
  const int64_t n = a.length;
  const int64_t heads = options.num_heads;
  const auto in = kernels::split_qkv(qkv.data().view(), heads, a.options.num_query_groups);
  Tensor y({in.q.s, in.q.b, heads * in.q.d}, qkv.dtype(), qkv.stream());
  Tensor lse({2, in.q.b, heads, n}, DType::kFloat32, qkv.stream());
  GatheredKeys keys(in, a, qkv.stream());
  for (const size_t half : {size_t{0}, size_t{1}}) {
    const int64_t at = static_cast<int64_t>(half) * n;
    const auto kv = keys.of_chunk(half, a);
    Tensor starts;
    attention_without_gradient(tokens_of(kernels::heads_of(y.view(), heads), at, n),
                               lse_of_chunk(lse, half).view(), tokens_of(in.q, at, n), kv.k, kv.v,
                               settings_of(a, half, in.q.d, starts), qkv.stream());
  }
  const Tensor scores = sinks.defined() ? sinks.data() : Tensor();
  for (const size_t half : {size_t{0}, size_t{1}}) {
    if (!scores.defined()) break;
    Tensor own = y.slice(static_cast<int64_t>(half) * n, n);
    Tensor own_lse = lse_of_chunk(lse, half);
    kernels::add_attention_sinks(kernels::heads_of(own.view(), heads), own_lse.view(),
                                 scores.view(), qkv.stream());
  }
  return record(
      "gathered_attention", y, {qkv, sinks},
      [a, qkv = qkv.data(), scores, y, lse](const Tensor& dy, const Wants& wants) -> Grads {
        Grads grads = {gradients(a, qkv, y, lse, dy), Tensor()};
        if (!wants[1]) return grads;
        const auto of_chunk = [&](size_t half) {
          const int64_t at = static_cast<int64_t>(half) * a.length;
          return sink_gradients(scores, dy.slice(at, a.length), y.slice(at, a.length),
                                lse_of_chunk(lse, half));
        };
        grads[1] = of_chunk(0);
        add_inplace(grads[1], of_chunk(1));
        return grads;
      });
}

}  // namespace megatron
