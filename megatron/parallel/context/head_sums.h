#pragma once

#include <array>

#include "megatron/kernels/attention.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// Heads of two chunks of tokens whose values are the sums of terms. With `in_fp32` the sums are
// kept in fp32 and rounded once; otherwise they are rounded into `out` at each term, and the first
// term is written there without a copy. All chunks of a term have terms before it, or none has.
class HeadSums {
 public:
  // out [2 n, b, heads, d]: must outlive this.
  HeadSums(const kernels::HeadsView& out, bool in_fp32, Stream stream);

  bool has_term(int64_t chunk) const { return has_term_[static_cast<size_t>(chunk)]; }
  // Memory for the next term, of `count` chunks from `chunk` on, in the dtype of `out`; perhaps the
  // sum's own. It is valid until add() or merge().
  kernels::HeadsView room(int64_t chunk, int64_t count);
  // Adds a term, which may be in room().
  void add(int64_t chunk, int64_t count, const kernels::ConstHeadsView& term);
  // Or merges attention to some keys with attention to others (kernels::merge_attention). The first
  // term's log-sum-exp is `lse` itself.
  void merge(int64_t chunk, const kernels::ConstHeadsView& term, TensorView lse,
             ConstView term_lse);
  // Rounds the sums into `out`. Call it once, after the last term.
  void finish();

 private:
  kernels::HeadsView sums_of(int64_t chunk, int64_t count) const;
  // The first term of a sum. Returns false if there has been one.
  bool begin(int64_t chunk, int64_t count, const kernels::ConstHeadsView& term);

  kernels::HeadsView out_;
  Tensor in_fp32_;  // undefined without
  kernels::HeadsView sums_;
  Tensor room_;
  Stream stream_;
  std::array<bool, 2> has_term_{};
};

}  // namespace megatron
