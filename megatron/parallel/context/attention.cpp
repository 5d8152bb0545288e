#include "megatron/parallel/context/attention.h"

#include <array>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/copy_heads.h"

namespace megatron {
namespace {

using kernels::ConstHeadsView;
using kernels::HeadsView;

// Tokens [begin, begin + count) of heads.
template <class View>
View tokens_of(View heads, int64_t begin, int64_t count) {
  using Byte = std::conditional_t<std::is_same_v<View, HeadsView>, std::byte, const std::byte>;
  heads.data = static_cast<Byte*>(heads.data) + begin * heads.stride_s * size_of(heads.dtype);
  heads.s = count;
  return heads;
}

// The sizes of one call, and the settings of its two chunks.
struct Problem {
  AttentionOptions options;
  ContextParallel cp;
  int64_t length;  // of a chunk

  Problem(const Tensor& qkv, const AttentionOptions& given, const ContextParallel& ranks)
      : options(given), cp(ranks), length(qkv.size(0) / 2) {
    invariant(options.is_causal && !options.key_padding_mask.defined() && qkv.size(0) % 2 == 0,
              "two chunks of a sequence that is spread over ranks attend causally");
    if (options.num_query_groups == 0) options.num_query_groups = options.num_heads;
  }

  int64_t whole() const { return 2 * cp.size() * length; }
  // Keys that the queries of a chunk see: all up to its end.
  int64_t num_keys(size_t half) const { return (cp.chunks()[half] + 1) * length; }
  // `starts` is what the settings borrow.
  kernels::AttentionSettings settings(size_t half, int64_t head_size, Tensor& starts) const {
    AttentionOptions of_chunk = options;
    if (options.document_starts.defined()) {
      const int64_t batch = options.document_starts.numel() / (2 * length);
      starts = options.document_starts.reshape({2 * batch, length})
                   .slice(static_cast<int64_t>(half) * batch, batch);
      of_chunk.document_starts = starts;
    }
    kernels::AttentionSettings made = attention_settings(of_chunk, head_size);
    made.query_offset = cp.chunks()[half] * length;
    made.dropout_length = whole();
    return made;
  }
};

// Keys and values of the whole sequence, [s, b, 2 g d] as kernels::split_kv wants them, on their
// way from the ranks.
class GatheredKeys {
 public:
  GatheredKeys(const kernels::Qkv<ConstHeadsView>& in, const Problem& problem, Stream stream)
      : own_({in.k.s, in.k.b, 2 * in.k.heads * in.k.d}, in.k.dtype, stream),
        all_(own_.shape().with(0, problem.whole()), own_.dtype(), stream) {
    const auto own = kernels::split_kv(own_.view(), in.k.heads);
    kernels::copy_heads(own.k, in.k, stream);
    kernels::copy_heads(own.v, in.v, stream);
    const int64_t n = problem.length;
    const int64_t half = problem.whole() / 2;
    const ContextParallel& cp = problem.cp;
    const Tensor first = own_.slice(0, n);
    const Tensor second = own_.slice(n, n);
    pending_[0] =
        comm::start_all_gather(all_.slice(0, half).view(), first.view(), cp.group, stream);
    pending_[1] =
        comm::start_all_gather(all_.slice(half, half).view(), second.view(), cp.mirrored, stream);
  }

  // The keys and values that a chunk sees. Call it for the first chunk first.
  kernels::Kv<ConstHeadsView> of_chunk(size_t half, const Problem& problem) {
    pending_[half].wait();
    const Tensor seen = all_.slice(0, problem.num_keys(half));
    return kernels::split_kv(seen.view(), problem.options.num_query_groups);
  }

 private:
  Tensor own_;
  Tensor all_;
  std::array<comm::Pending, 2> pending_;
};

// [2, b, n, s/2cp] fp32: log-sum-exp by chunk.
Tensor lse_of_chunk(const Tensor& lse, size_t half) {
  return lse.slice(static_cast<int64_t>(half), 1).reshape({lse.size(1), lse.size(2), lse.size(3)});
}

Tensor gradients(const Problem& problem, const Tensor& qkv, const Tensor& y, const Tensor& lse,
                 const Tensor& dy) {
  const int64_t n = problem.length;
  const int64_t heads = problem.options.num_heads;
  const int64_t groups = problem.options.num_query_groups;
  const Stream stream = qkv.stream();
  const auto in = kernels::split_qkv(qkv.view(), heads, groups);
  Tensor dqkv = empty_like(qkv);
  const auto out = kernels::split_qkv(dqkv.view(), heads, groups);
  GatheredKeys keys(in, problem, stream);

  std::array<Tensor, 2> dkv;  // of the keys that each chunk sees
  for (const size_t half : {size_t{0}, size_t{1}}) {
    const int64_t at = static_cast<int64_t>(half) * n;
    const int64_t seen = half == 0 ? problem.num_keys(0) : problem.whole();
    const Shape shape = {seen, in.q.b, 2 * groups * in.q.d};
    // The second chunk's gradient is summed over ranks: it has room for all keys, and is 0 for keys
    // that the chunk does not see.
    dkv[half] = problem.num_keys(half) == seen ? Tensor(shape, qkv.dtype(), stream)
                                               : zeros(shape, qkv.dtype(), stream);
    Tensor part = dkv[half].slice(0, problem.num_keys(half));
    const auto grad = kernels::split_kv(part.view(), groups);
    const auto kv = keys.of_chunk(half, problem);
    Tensor starts;
    attention_gradients(tokens_of(out.q, at, n), grad.k, grad.v, TensorView{},
                        tokens_of(kernels::heads_of(dy.view(), heads), at, n),
                        tokens_of(kernels::heads_of(y.view(), heads), at, n),
                        ConstView(lse_of_chunk(lse, half).view()), tokens_of(in.q, at, n), kv.k,
                        kv.v, problem.settings(half, in.q.d, starts), stream);
  }

  const int64_t half_length = problem.whole() / 2;
  Tensor own({2 * n, in.q.b, 2 * groups * in.q.d}, qkv.dtype(), stream);
  // Only second chunks see the second half of the keys.
  comm::Pending second = comm::start_reduce_scatter(
      own.slice(n, n).view(), dkv[1].slice(half_length, half_length).view(), comm::Reduce::kSum,
      problem.cp.mirrored, stream);
  Tensor sum = dkv[1].slice(0, problem.num_keys(0));
  add_inplace(sum, dkv[0]);
  comm::reduce_scatter(own.slice(0, n).view(), dkv[1].slice(0, half_length).view(),
                       comm::Reduce::kSum, problem.cp.group, stream);
  second.wait();
  const auto grad = kernels::split_kv(own.view(), groups);
  kernels::copy_heads(out.k, grad.k, stream);
  kernels::copy_heads(out.v, grad.v, stream);
  return dqkv;
}

}  // namespace

Variable context_parallel_attention(const Variable& qkv, const AttentionOptions& options,
                                    const ContextParallel& cp) {
  if (cp.size() == 1) return attention(qkv, options);
  const TraceRange range("attention", qkv.stream());
  const Problem problem(qkv.data(), options, cp);
  const int64_t n = problem.length;
  const int64_t heads = options.num_heads;
  const auto in = kernels::split_qkv(qkv.data().view(), heads, problem.options.num_query_groups);
  Tensor y({in.q.s, in.q.b, heads * in.q.d}, qkv.dtype(), qkv.stream());
  Tensor lse({2, in.q.b, heads, n}, DType::kFloat32, qkv.stream());
  GatheredKeys keys(in, problem, qkv.stream());
  for (const size_t half : {size_t{0}, size_t{1}}) {
    const int64_t at = static_cast<int64_t>(half) * n;
    const auto kv = keys.of_chunk(half, problem);
    Tensor starts;
    attention_without_gradient(tokens_of(kernels::heads_of(y.view(), heads), at, n),
                               lse_of_chunk(lse, half).view(), tokens_of(in.q, at, n), kv.k, kv.v,
                               problem.settings(half, in.q.d, starts), qkv.stream());
  }
  return record("context_parallel_attention", y, {qkv},
                [problem, qkv = qkv.data(), y, lse](const Tensor& dy, const Wants&) -> Grads {
                  return {gradients(problem, qkv, y, lse, dy)};
                });
}

}  // namespace megatron
