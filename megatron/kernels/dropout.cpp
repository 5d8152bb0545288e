#include "megatron/kernels/dropout.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void bias_dropout_add_forward(TensorView y, ConstView x, ConstView bias, ConstView residual,
                              DropoutKey key, Stream stream) {
  return dispatch<cpu::bias_dropout_add_forward, cuda::bias_dropout_add_forward>(
      "bias_dropout_add", y, x, bias, residual, key, stream);
}

void dropout(TensorView y, ConstView x, DropoutKey key, int64_t first_column, Stream stream) {
  return dispatch<cpu::dropout, cuda::dropout>("dropout", y, x, key, first_column, stream);
}

}  // namespace megatron::kernels
