#include "megatron/kernels/embedding.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void embedding_forward(TensorView y, ConstView word, ConstView ids, int64_t first_row,
                       ConstView position, ConstView position_ids, Stream stream) {
  return dispatch<cpu::embedding_forward, cuda::embedding_forward>(
      "embedding", y, word, ids, first_row, position, position_ids, stream);
}

void embedding_backward(TensorView dtable, ConstView dy, ConstView ids, ConstView order,
                        int64_t first_row, Stream stream) {
  return dispatch<cpu::embedding_backward, cuda::embedding_backward>("embedding", dtable, dy, ids,
                                                                     order, first_row, stream);
}

}  // namespace megatron::kernels
