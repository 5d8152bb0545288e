#include "megatron/kernels/multiply.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void multiply(TensorView y, ConstView x, ConstView z, Stream stream) {
  return dispatch<cpu::multiply, cuda::multiply>("multiply", y, x, z, stream);
}

}  // namespace megatron::kernels
