#include "megatron/ops/latent_heads.h"

#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/copy_heads.h"
#include "megatron/ops/head_views.h"

namespace megatron {
namespace {

// Parts of the fused projection.
template <class View>
struct LatentParts {
  View query, query_rotated;
  View key, key_rotated;  // without and with position
  View value;

  template <class Matrix>
  LatentParts(Matrix qkv, const LatentHeads& heads) {
    const auto fused = kernels::split_qkv(qkv, heads.num_heads, heads.num_heads);
    query = channels_of(View(fused.q), 0, heads.key());
    query_rotated = channels_of(View(fused.q), heads.unrotated, heads.rotated);
    key = channels_of(View(fused.k), 0, heads.unrotated);
    key_rotated = channels_of(View(fused.k), heads.unrotated, heads.rotated);
    value = channels_of(View(fused.v), 0, heads.value);
  }
};

// The sum of the heads [s, b, n, d] of a view: [s, b, d].
Tensor summed_heads(const kernels::ConstHeadsView& x, Stream stream) {
  Tensor separate({x.heads, x.s, x.b, x.d}, x.dtype, stream);
  kernels::copy_heads({.data = separate.view().data,
                       .dtype = x.dtype,
                       .s = x.s,
                       .b = x.b,
                       .heads = x.heads,
                       .d = x.d,
                       .stride_s = x.b * x.d,
                       .stride_b = x.d,
                       .heads_per_group = x.heads,
                       .stride_group = 0,
                       .stride_head = x.s * x.b * x.d},
                      x, stream);
  return sum_leading(separate.reshape({x.heads, x.s * x.b * x.d})).reshape({x.s, x.b, x.d});
}

Grads latent_gradients(const Tensor& dy, const LatentHeads& heads, const LatentRotation& rotation) {
  const Stream stream = dy.stream();
  const int64_t n = heads.num_heads;
  const int64_t s = dy.size(0);
  const int64_t b = dy.size(1);
  const LatentParts<kernels::ConstHeadsView> parts(dy.view(), heads);

  Tensor dq({s, b, n * heads.key()}, dy.dtype(), stream);
  const kernels::HeadsView queries = kernels::heads_of(dq.view(), n);
  kernels::copy_heads(queries, parts.query, stream);
  rotation.apply(channels_of(queries, heads.unrotated, heads.rotated), true, stream);

  Tensor dkv({s, b, n * (heads.unrotated + heads.value)}, dy.dtype(), stream);
  const kernels::HeadsView pairs = kernels::heads_of(dkv.view(), n);
  kernels::copy_heads(channels_of(pairs, 0, heads.unrotated), parts.key, stream);
  kernels::copy_heads(channels_of(pairs, heads.unrotated, heads.value), parts.value, stream);

  Tensor dkey = summed_heads(parts.key_rotated, stream);
  rotation.apply(kernels::heads_of(dkey.view(), 1), true, stream);
  return {dq, dkv, dkey};
}

// Parts of x [.., c] as heads of one head: views that copy_heads() reads.
void copy_channels(Tensor& to, int64_t to_begin, const Tensor& from, int64_t from_begin,
                   int64_t count) {
  kernels::copy_heads(channels_of(kernels::heads_of(to.view(), 1), to_begin, count),
                      channels_of(kernels::heads_of(from.view(), 1), from_begin, count),
                      to.stream());
}

std::vector<Tensor> channel_parts(const Tensor& x, int64_t count) {
  const int64_t rest = x.size(2) - count;
  Tensor first({x.size(0), x.size(1), count}, x.dtype(), x.stream());
  Tensor second({x.size(0), x.size(1), rest}, x.dtype(), x.stream());
  copy_channels(first, 0, x, 0, count);
  copy_channels(second, 0, x, count, rest);
  return {first, second};
}

Tensor joined_channels(const Tensor& first, const Tensor& second) {
  Tensor y({first.size(0), first.size(1), first.size(2) + second.size(2)}, first.dtype(),
           first.stream());
  copy_channels(y, 0, first, 0, first.size(2));
  copy_channels(y, first.size(2), second, 0, second.size(2));
  return y;
}

}  // namespace

Variable join_latent_heads(const Variable& q, const Variable& kv, const Variable& key,
                           const LatentHeads& heads, const Tensor& table,
                           const RotaryPositions& positions) {
  const TraceRange range("join_latent_heads", q.stream());
  const int64_t n = heads.num_heads;
  const int64_t s = q.size(0);
  const int64_t b = q.size(1);
  expect_shape(q.shape(), {s, b, n * heads.key()}, "join_latent_heads: q");
  expect_shape(kv.shape(), {s, b, n * (heads.unrotated + heads.value)}, "join_latent_heads: kv");
  expect_shape(key.shape(), {s, b, heads.rotated}, "join_latent_heads: key");
  const Stream stream = q.stream();
  const LatentRotation rotation{table, positions};

  const Shape shape = {s, b, 3 * n * heads.padded()};
  const bool is_padded = heads.key() != heads.value;
  Tensor y = is_padded ? zeros(shape, q.dtype(), stream) : Tensor(shape, q.dtype(), stream);
  const LatentParts<kernels::HeadsView> parts(y.view(), heads);
  kernels::copy_heads(parts.query, kernels::heads_of(q.data().view(), n), stream);
  rotation.apply(parts.query_rotated, false, stream);

  const auto pairs = kernels::heads_of(kv.data().view(), n);
  kernels::copy_heads(parts.key, channels_of(pairs, 0, heads.unrotated), stream);
  kernels::copy_heads(parts.value, channels_of(pairs, heads.unrotated, heads.value), stream);

  Tensor rotated = copied(key.data());
  rotation.apply(kernels::heads_of(rotated.view(), 1), false, stream);
  kernels::copy_heads(parts.key_rotated,
                      repeated_head(kernels::heads_of(std::as_const(rotated).view(), 1), n),
                      stream);
  return record("join_latent_heads", std::move(y), {q, kv, key},
                [heads, rotation](const Tensor& dy, const Wants&) -> Grads {
                  return latent_gradients(dy, heads, rotation);
                });
}

Variable first_channels(const Variable& x, int64_t num_heads, int64_t count) {
  const int64_t d = x.size(2) / num_heads;
  if (d == count) return x;
  const TraceRange range("first_channels", x.stream());
  Tensor y({x.size(0), x.size(1), num_heads * count}, x.dtype(), x.stream());
  kernels::copy_heads(kernels::heads_of(y.view(), num_heads),
                      channels_of(kernels::heads_of(x.data().view(), num_heads), 0, count),
                      x.stream());
  return record("first_channels", std::move(y), {x},
                [shape = x.shape(), num_heads, count](const Tensor& dy, const Wants&) -> Grads {
                  Tensor dx = zeros(shape, dy.dtype(), dy.stream());
                  kernels::copy_heads(
                      channels_of(kernels::heads_of(dx.view(), num_heads), 0, count),
                      kernels::heads_of(dy.view(), num_heads), dy.stream());
                  return {dx};
                });
}

std::pair<Variable, Variable> split_channels(const Variable& x, int64_t count) {
  const TraceRange range("split_channels", x.stream());
  const std::vector<Variable> parts = record_outputs(
      "split_channels", channel_parts(x.data(), count), {x},
      [shape = x.shape(), count](const std::vector<Tensor>& dys, const Wants&) -> Grads {
        if (dys[0].defined() && dys[1].defined()) return {joined_channels(dys[0], dys[1])};
        const bool is_first = dys[0].defined();
        const Tensor& dy = is_first ? dys[0] : dys[1];
        Tensor dx = zeros(shape, dy.dtype(), dy.stream());
        copy_channels(dx, is_first ? 0 : count, dy, 0, dy.size(2));
        return {dx};
      });
  return {parts[0], parts[1]};
}

Variable join_channels(const Variable& x, const Variable& y) {
  const TraceRange range("join_channels", x.stream());
  return record("join_channels", joined_channels(x.data(), y.data()), {x, y},
                [count = x.size(2)](const Tensor& dy, const Wants&) -> Grads {
                  return channel_parts(dy, count);
                });
}

}  // namespace megatron
