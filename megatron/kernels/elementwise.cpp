#include "megatron/kernels/elementwise.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void fill(TensorView y, float value, Stream stream) {
  return dispatch<cpu::fill, cuda::fill>("fill", y, value, stream);
}

void cast(TensorView y, ConstView x, Stream stream) {
  return dispatch<cpu::cast, cuda::cast>("cast", y, x, stream);
}

void add(TensorView y, ConstView x, ConstView z, float alpha, Stream stream) {
  return dispatch<cpu::add, cuda::add>("add", y, x, z, alpha, stream);
}

void scale(TensorView y, ConstView x, float alpha, Stream stream) {
  return dispatch<cpu::scale, cuda::scale>("scale", y, x, alpha, stream);
}

void sum_rows(TensorView y, ConstView x, float beta, Stream stream) {
  return dispatch<cpu::sum_rows, cuda::sum_rows>("sum_rows", y, x, beta, stream);
}

}  // namespace megatron::kernels
