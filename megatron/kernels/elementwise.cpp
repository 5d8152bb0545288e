#include "megatron/kernels/elementwise.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void fill(TensorView y, float value, Stream stream) {
  if (stream.is_cpu()) return cpu::fill(y, value, stream);
  if constexpr (kBuiltWithCuda) return cuda::fill(y, value, stream);
  throw_built_without_cuda("fill");
}

void cast(TensorView y, ConstView x, Stream stream) {
  if (stream.is_cpu()) return cpu::cast(y, x, stream);
  if constexpr (kBuiltWithCuda) return cuda::cast(y, x, stream);
  throw_built_without_cuda("cast");
}

void add(TensorView y, ConstView x, ConstView z, float alpha, Stream stream) {
  if (stream.is_cpu()) return cpu::add(y, x, z, alpha, stream);
  if constexpr (kBuiltWithCuda) return cuda::add(y, x, z, alpha, stream);
  throw_built_without_cuda("add");
}

void scale(TensorView y, ConstView x, float alpha, Stream stream) {
  if (stream.is_cpu()) return cpu::scale(y, x, alpha, stream);
  if constexpr (kBuiltWithCuda) return cuda::scale(y, x, alpha, stream);
  throw_built_without_cuda("scale");
}

void sum_rows(TensorView y, ConstView x, float beta, Stream stream) {
  if (stream.is_cpu()) return cpu::sum_rows(y, x, beta, stream);
  if constexpr (kBuiltWithCuda) return cuda::sum_rows(y, x, beta, stream);
  throw_built_without_cuda("sum_rows");
}

}  // namespace megatron::kernels
