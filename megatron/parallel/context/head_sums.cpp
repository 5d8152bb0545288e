#include "megatron/parallel/context/head_sums.h"

#include "megatron/core/error.h"
#include "megatron/kernels/merge_heads.h"
#include "megatron/parallel/context/chunks.h"

namespace megatron {

using kernels::ConstHeadsView;
using kernels::HeadsView;

HeadSums::HeadSums(const HeadsView& out, bool in_fp32, Stream stream)
    : out_(out), sums_(out), stream_(stream) {
  if (!in_fp32 || out.dtype == DType::kFloat32) return;
  in_fp32_ = Tensor({out.s, out.b, out.heads * out.d}, DType::kFloat32, stream);
  sums_ = kernels::heads_of(in_fp32_.view(), out.heads);
}

HeadsView HeadSums::sums_of(int64_t chunk, int64_t count) const {
  const int64_t length = out_.s / 2;
  return tokens_of(sums_, chunk * length, count * length);
}

HeadsView HeadSums::room(int64_t chunk, int64_t count) {
  if (!has_term(chunk) && !in_fp32_.defined()) return sums_of(chunk, count);
  room_ = Tensor({count * out_.s / 2, out_.b, out_.heads * out_.d}, out_.dtype, stream_);
  return kernels::heads_of(room_.view(), out_.heads);
}

bool HeadSums::begin(int64_t chunk, int64_t count, const ConstHeadsView& term) {
  invariant(count == 1 || has_term_[0] == has_term_[1],
            "the chunks of a term have terms before it, or none has");
  if (has_term(chunk)) return false;
  for (int64_t i = chunk; i < chunk + count; ++i) has_term_[static_cast<size_t>(i)] = true;
  const HeadsView sums = sums_of(chunk, count);
  if (sums.data != term.data) kernels::convert_heads(sums, term, stream_);
  return true;
}

void HeadSums::add(int64_t chunk, int64_t count, const ConstHeadsView& term) {
  if (!begin(chunk, count, term)) kernels::add_heads(sums_of(chunk, count), term, stream_);
  room_ = Tensor();
}

void HeadSums::merge(int64_t chunk, const ConstHeadsView& term, TensorView lse,
                     ConstView term_lse) {
  if (!begin(chunk, 1, term)) {
    kernels::merge_attention(sums_of(chunk, 1), lse, term, term_lse, stream_);
  }
  room_ = Tensor();
}

void HeadSums::finish() {
  if (in_fp32_.defined()) kernels::convert_heads(out_, sums_, stream_);
}

}  // namespace megatron
