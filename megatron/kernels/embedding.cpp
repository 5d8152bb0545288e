#include "megatron/kernels/embedding.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void embedding_forward(TensorView y, ConstView word, ConstView ids, int64_t first_row,
                       ConstView position, ConstView position_ids, Stream stream) {
  if (stream.is_cpu()) {
    return cpu::embedding_forward(y, word, ids, first_row, position, position_ids, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::embedding_forward(y, word, ids, first_row, position, position_ids, stream);
  }
  throw_built_without_cuda("embedding");
}

void embedding_backward(TensorView dtable, ConstView dy, ConstView ids, ConstView order,
                        int64_t first_row, Stream stream) {
  if (stream.is_cpu()) {
    return cpu::embedding_backward(dtable, dy, ids, order, first_row, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::embedding_backward(dtable, dy, ids, order, first_row, stream);
  }
  throw_built_without_cuda("embedding");
}

}  // namespace megatron::kernels
