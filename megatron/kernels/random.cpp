#include "megatron/kernels/random.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void fill_normal(TensorView y, MatrixPlace first, uint64_t key, float std, Stream stream) {
  return dispatch<cpu::fill_normal, cuda::fill_normal>("fill_normal", y, first, key, std, stream);
}

void fill_uniform(TensorView y, MatrixPlace first, uint64_t key, float bound, Stream stream) {
  return dispatch<cpu::fill_uniform, cuda::fill_uniform>("fill_uniform", y, first, key, bound,
                                                         stream);
}

}  // namespace megatron::kernels
