#include "megatron/parallel/context/chunks.h"

#include <array>

#include "megatron/core/error.h"

namespace megatron {
namespace {

template <class View>
View shifted(View heads, int64_t elements) {
  using Byte =
      std::conditional_t<std::is_same_v<View, kernels::HeadsView>, std::byte, const std::byte>;
  heads.data = static_cast<Byte*>(heads.data) + elements * size_of(heads.dtype);
  return heads;
}

template <class View>
View tokens_of_view(View heads, int64_t begin, int64_t count) {
  heads.s = count;
  return shifted(heads, begin * heads.stride_s);
}

// The part of `n` that is half 0 or 1: the first of it, and how much.
std::array<int64_t, 2> half_of_range(int64_t n, int64_t half) {
  const int64_t first = (n + 1) / 2;
  return half == 0 ? std::array{int64_t{0}, first} : std::array{first, n - first};
}

template <class View>
View half_of_view(const View& heads, int64_t half, int64_t groups) {
  View part = heads;
  if (heads.b > 1) {
    const auto [begin, count] = half_of_range(heads.b, half);
    part.b = count;
    return shifted(part, heads.offset(begin, 0));
  }
  const auto [begin, count] = half_of_range(groups, half);
  const int64_t heads_per_group = heads.heads / groups;
  part.heads = count * heads_per_group;
  return shifted(part, heads.offset(0, begin * heads_per_group));
}

template <class View>
View joined_view(const kernels::Kv<View>& kv) {
  View both = kv.k;
  both.d *= 2;
  invariant(shifted(kv.k, kv.k.d).data == kv.v.data, "each key is followed by its value");
  return both;
}

template <class View>
kernels::Kv<View> split_view(View both) {
  both.d /= 2;
  return {both, shifted(both, both.d)};
}

}  // namespace

kernels::HeadsView tokens_of(kernels::HeadsView heads, int64_t begin, int64_t count) {
  return tokens_of_view(heads, begin, count);
}
kernels::ConstHeadsView tokens_of(kernels::ConstHeadsView heads, int64_t begin, int64_t count) {
  return tokens_of_view(heads, begin, count);
}

kernels::HeadsView half_of(const kernels::HeadsView& heads, int64_t half, int64_t groups) {
  return half_of_view(heads, half, groups);
}
kernels::ConstHeadsView half_of(const kernels::ConstHeadsView& heads, int64_t half,
                                int64_t groups) {
  return half_of_view(heads, half, groups);
}

kernels::HeadsView joined(const kernels::Kv<kernels::HeadsView>& kv) { return joined_view(kv); }
kernels::ConstHeadsView joined(const kernels::Kv<kernels::ConstHeadsView>& kv) {
  return joined_view(kv);
}
kernels::Kv<kernels::HeadsView> keys_and_values(const kernels::HeadsView& joined) {
  return split_view(joined);
}
kernels::Kv<kernels::ConstHeadsView> keys_and_values(const kernels::ConstHeadsView& joined) {
  return split_view(joined);
}

Tensor lse_of_chunk(const Tensor& lse, size_t chunk) {
  return lse.slice(static_cast<int64_t>(chunk), 1).reshape({lse.size(1), lse.size(2), lse.size(3)});
}

ChunkedAttention::ChunkedAttention(const Tensor& qkv, const AttentionOptions& given,
                                   const ContextParallel& ranks)
    : options(given), cp(ranks), length(qkv.size(0) / 2) {
  if (options.num_query_groups == 0) options.num_query_groups = options.num_heads;
}

kernels::AttentionSettings ChunkedAttention::settings(size_t chunk, int64_t query_offset,
                                                      int64_t key_offset, int64_t head_size,
                                                      Tensor& starts) const {
  AttentionOptions of_chunk = options;
  if (options.document_starts.defined()) {
    const int64_t batch = options.document_starts.numel() / (2 * length);
    starts = options.document_starts.reshape({2 * batch, length})
                 .slice(static_cast<int64_t>(chunk) * batch, batch);
    of_chunk.document_starts = starts;
  }
  kernels::AttentionSettings made = attention_settings(of_chunk, head_size);
  made.query_offset = query_offset;
  made.key_offset = key_offset;
  made.dropout_length = whole();
  return made;
}

}  // namespace megatron
