#include "megatron/parallel/context/sequence.h"

namespace megatron {

DropoutKey of_rows(DropoutKey key, int64_t num_rows, const TensorParallel& tp,
                   const ContextParallel& cp) {
  const int64_t begin = tp.sequence_parallel ? tp.rank() * num_rows : 0;  // in the chunks
  key.first_row = begin;
  if (cp.size() == 1) return key;
  const int64_t length = num_rows * (tp.sequence_parallel ? tp.size() : 1) / 2;  // of a chunk
  const auto [first, second] = cp.chunks();
  if (begin >= length) {
    key.first_row += (second - 1) * length;
    return key;
  }
  key.first_row += first * length;
  key.gap_at = length - begin;
  key.gap = (second - 1 - first) * length;
  return key;
}

}  // namespace megatron
