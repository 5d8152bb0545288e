#include "megatron/kernels/random.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void fill_normal(TensorView y, MatrixPlace first, uint64_t key, float std, Stream stream) {
  if (stream.is_cpu()) return cpu::fill_normal(y, first, key, std, stream);
  if constexpr (kBuiltWithCuda) return cuda::fill_normal(y, first, key, std, stream);
  throw_built_without_cuda("fill_normal");
}

void fill_uniform(TensorView y, MatrixPlace first, uint64_t key, float bound, Stream stream) {
  if (stream.is_cpu()) return cpu::fill_uniform(y, first, key, bound, stream);
  if constexpr (kBuiltWithCuda) return cuda::fill_uniform(y, first, key, bound, stream);
  throw_built_without_cuda("fill_uniform");
}

}  // namespace megatron::kernels
