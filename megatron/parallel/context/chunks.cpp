#include "megatron/parallel/context/chunks.h"

namespace megatron {
namespace {

template <class View>
View tokens_of_view(View heads, int64_t begin, int64_t count) {
  using Byte =
      std::conditional_t<std::is_same_v<View, kernels::HeadsView>, std::byte, const std::byte>;
  heads.data = static_cast<Byte*>(heads.data) + begin * heads.stride_s * size_of(heads.dtype);
  heads.s = count;
  return heads;
}

}  // namespace

kernels::HeadsView tokens_of(kernels::HeadsView heads, int64_t begin, int64_t count) {
  return tokens_of_view(heads, begin, count);
}
kernels::ConstHeadsView tokens_of(kernels::ConstHeadsView heads, int64_t begin, int64_t count) {
  return tokens_of_view(heads, begin, count);
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
