#include "megatron/kernels/dropout.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void bias_dropout_add_forward(TensorView y, ConstView x, ConstView bias, ConstView residual,
                              DropoutKey key, Stream stream) {
  if (stream.is_cpu()) return cpu::bias_dropout_add_forward(y, x, bias, residual, key, stream);
  if constexpr (kBuiltWithCuda) {
    return cuda::bias_dropout_add_forward(y, x, bias, residual, key, stream);
  }
  throw_built_without_cuda("bias_dropout_add");
}

void dropout(TensorView y, ConstView x, DropoutKey key, int64_t first_column, Stream stream) {
  if (stream.is_cpu()) return cpu::dropout(y, x, key, first_column, stream);
  if constexpr (kBuiltWithCuda) return cuda::dropout(y, x, key, first_column, stream);
  throw_built_without_cuda("dropout");
}

}  // namespace megatron::kernels
