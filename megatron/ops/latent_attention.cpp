#include "megatron/ops/latent_attention.h"

#include <vector>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/copy_heads.h"
#include "megatron/kernels/latent_attention.h"
#include "megatron/kernels/rotary.h"
#include "megatron/ops/attention.h"
#include "megatron/ops/head_views.h"
#include "megatron/ops/optional_view.h"

namespace megatron {
namespace {

// The heads of x [heads, t, d].
template <class View>
auto outer_heads(View x) {
  const int64_t t = x.size(1), d = x.size(2);
  auto heads = kernels::heads_of(View{x.data, {t, 1, d}, x.dtype}, 1);
  heads.heads = heads.heads_per_group = x.size(0);
  heads.stride_head = t * d;
  return heads;
}

kernels::KeyValuePages pages_of_latents(PagedStore& store) {
  return {store.keys.view(), store.values.view(), view_or_none(store.scales)};
}

}  // namespace

bool is_absorbed(int64_t tokens, int64_t before, const LatentHeads& heads, int64_t latent) {
  const int64_t both = heads.unrotated + heads.value;
  return tokens == 1 || before * both * latent > tokens * (before + tokens) * (2 * latent - both);
}

PagedBatch latent_batch(std::span<const PagedRow> rows, int64_t page_tokens,
                        const LatentHeads& heads, int64_t latent, Stream stream) {
  std::vector<PagedRow> divided;
  int64_t decode_tokens = 0;
  for (const PagedRow& row : rows) {
    if (!is_absorbed(row.num_tokens, row.before, heads, latent)) {
      divided.push_back(row);
      continue;
    }
    for (int64_t i = 0; i < row.num_tokens; ++i) {
      divided.push_back({row.first_token + i, 1, row.before + i, row.pages});
    }
    decode_tokens = std::max(decode_tokens, row.first_token + row.num_tokens);
  }
  PagedBatch batch = paged_batch(divided, page_tokens, {}, stream);
  batch.decode_tokens = decode_tokens;
  batch.slots = slots_of(rows, page_tokens).to(stream);
  return batch;
}

void rotate_latent_heads(Tensor& q, Tensor& key, const LatentHeads& heads, const Tensor& table,
                         const RotaryPositions& positions) {
  const LatentRotation rotation{table, positions};
  rotation.apply(
      channels_of(kernels::heads_of(q.view(), heads.num_heads), heads.unrotated, heads.rotated),
      false, q.stream());
  rotation.apply(kernels::heads_of(key.view(), 1), false, key.stream());
}

void put_latents(const Tensor& key, const Tensor& latent, PagedStore& store,
                 const PagedBatch& batch) {
  kernels::put_latents(pages_of_latents(store), kernels::heads_of(key.view(), 1),
                       kernels::heads_of(latent.view(), 1), batch.slots.view(), key.stream());
}

std::pair<Tensor, Tensor> latents_of(const PagedBatch::Prefill& prefill, PagedStore& store,
                                     DType dtype) {
  const int64_t length = prefill.before + prefill.num_tokens;
  const Stream stream = store.keys.stream();
  Tensor key({length, 1, store.keys.size(3)}, dtype, stream);
  Tensor latent({length, 1, store.values.size(3)}, dtype, stream);
  kernels::take_latents(kernels::heads_of(key.view(), 1), kernels::heads_of(latent.view(), 1),
                        pages_of_latents(store), prefill.pages.view(), stream);
  return {key, latent};
}

namespace {

// Products of heads with parts of LatentUp, those of an adapter added.
struct HeadProducts {
  const LatentUp& up;
  int64_t n, head_rows;  // u + v

  // x [n, t, m] -> [n, t, c], with the rows [0, m) of each head.
  Tensor absorbed(const Tensor& x) const {
    Tensor y = multiplied(x, up.weight, up.scales, 0, up.weight.size(1), kernels::Transpose::kNo);
    if (!up.a.defined()) return y;
    const Tensor narrow = multiplied(x, up.b, {}, 0, up.b.size(1), kernels::Transpose::kNo);
    add_inplace(y, product(narrow, kernels::Transpose::kNo, y.size(2)), up.adapter_scale);
    return y;
  }
  // x [n, t, c] -> [n, t, m], with the last m rows of each head, transposed.
  Tensor projected(const Tensor& x, int64_t m) const {
    const int64_t first = head_rows - m;
    Tensor y = multiplied(x, up.weight, up.scales, first, m, kernels::Transpose::kYes);
    if (!up.a.defined()) return y;
    const Tensor narrow = product(x, kernels::Transpose::kYes, up.a.size(0));
    add_inplace(y, multiplied(narrow, up.b, {}, first, m, kernels::Transpose::kYes),
                up.adapter_scale);
    return y;
  }

 private:
  Tensor multiplied(const Tensor& x, const Tensor& w, const Tensor& scales, int64_t first,
                    int64_t columns, kernels::Transpose transpose) const {
    Tensor y({n, x.size(1), columns}, x.dtype(), x.stream());
    const Tensor of_rows = scales.defined() ? scales.reshape({n, head_rows}) : Tensor();
    const Tensor by_head = w.reshape({n, head_rows, w.size(1)});
    kernels::multiply_heads(y.view(), x.view(), by_head.view(), view_or_none(of_rows), first,
                            transpose, x.stream());
    return y;
  }
  // x [n, t, ..] with the adapter's a, or its transpose.
  Tensor product(const Tensor& x, kernels::Transpose transpose, int64_t columns) const {
    Tensor y({n, x.size(1), columns}, x.dtype(), x.stream());
    kernels::matmul(y.rows(), x.rows(), kernels::Transpose::kNo, up.a.view(), transpose,
                    ConstView{}, 0.0f, x.stream());
    return y;
  }
};

}  // namespace

void attend_latents(Tensor& y, const Tensor& q, const LatentUp& up, PagedStore& store,
                    const PagedBatch& batch, const LatentHeads& heads,
                    const PagedAttentionOptions& options) {
  const int64_t tokens = batch.decode_tokens;
  if (tokens == 0) return;
  const TraceRange range("latent_attention", y.stream());
  const Stream stream = y.stream();
  const int64_t n = heads.num_heads;
  const int64_t latent = store.values.size(3);
  const HeadProducts products{up, n, heads.unrotated + heads.value};

  const Tensor own = q.slice(0, tokens);
  const auto queries = kernels::heads_of(own.view(), n);
  Tensor unrotated({n, tokens, heads.unrotated}, q.dtype(), stream);
  kernels::copy_heads(outer_heads(unrotated.view()), channels_of(queries, 0, heads.unrotated),
                      stream);
  const Tensor absorbed = products.absorbed(unrotated);
  Tensor mean({n, tokens, latent}, q.dtype(), stream);
  kernels::latent_attention(
      outer_heads(mean.view()), pages_of_latents(store), outer_heads(absorbed.view()),
      channels_of(queries, heads.unrotated, heads.rotated),
      {batch.pages.view(), batch.lengths.view(), batch.queries.view(), batch.max_length},
      {.scale = options.softmax_scale,
       .window = options.window,
       .logit_cap = options.logit_cap,
       .sinks = view_or_none(options.sinks)},
      stream);
  const Tensor values = products.projected(mean, heads.value);
  Tensor out = y.slice(0, tokens);
  kernels::copy_heads(kernels::heads_of(out.view(), n), outer_heads(values.view()), stream);
}

void attend_projected_latents(Tensor& y, const Tensor& q, const Tensor& kv, const Tensor& key,
                              const PagedBatch::Prefill& prefill, const LatentHeads& heads,
                              const PagedAttentionOptions& options) {
  const TraceRange range("latent_attention", y.stream());
  const Stream stream = y.stream();
  const int64_t n = heads.num_heads;
  const int64_t length = kv.size(0);
  // Attention reads heads of one size (LatentHeads::padded()).
  const auto padded = [&](int64_t tokens, int64_t channels) {
    const Shape shape = {tokens, 1, n * heads.padded()};
    return channels == heads.padded() ? Tensor(shape, y.dtype(), stream)
                                      : zeros(shape, y.dtype(), stream);
  };
  const auto copy = [&](Tensor& to, int64_t begin, const kernels::ConstHeadsView& from) {
    kernels::copy_heads(channels_of(kernels::heads_of(to.view(), n), begin, from.d), from, stream);
  };
  const Tensor own = q.slice(prefill.first_token, prefill.num_tokens);
  Tensor queries = padded(prefill.num_tokens, heads.key());
  Tensor keys = padded(length, heads.key());
  Tensor values = padded(length, heads.value);
  copy(queries, 0, kernels::heads_of(own.view(), n));
  const auto pairs = kernels::heads_of(kv.view(), n);
  copy(keys, 0, channels_of(pairs, 0, heads.unrotated));
  copy(keys, heads.unrotated, repeated_head(kernels::heads_of(key.view(), 1), n));
  copy(values, 0, channels_of(pairs, heads.unrotated, heads.value));
  const auto view = [&](const Tensor& x) { return kernels::heads_of(x.view(), n); };
  Tensor mean = empty_like(queries);
  kernels::AttentionSettings settings;
  settings.scale = options.softmax_scale;
  settings.is_causal = true;
  settings.query_offset = prefill.before;
  settings.window = options.window;
  settings.logit_cap = options.logit_cap;
  settings.sinks = view_or_none(options.sinks);
  attention_without_gradient(kernels::heads_of(mean.view(), n), TensorView{}, view(queries),
                             view(keys), view(values), settings, stream);
  Tensor out = y.slice(prefill.first_token, prefill.num_tokens);
  kernels::copy_heads(kernels::heads_of(out.view(), n), channels_of(view(mean), 0, heads.value),
                      stream);
}

}  // namespace megatron
