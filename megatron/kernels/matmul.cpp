#include "megatron/kernels/matmul.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void matmul(TensorView c, ConstView a, Transpose transpose_a, ConstView b, Transpose transpose_b,
            ConstView bias, float beta, Stream stream) {
  if (stream.is_cpu()) {
    return cpu::matmul(c, a, transpose_a, b, transpose_b, bias, beta, stream);
  }
  throw_built_without_cuda("matmul");
}

}  // namespace megatron::kernels
