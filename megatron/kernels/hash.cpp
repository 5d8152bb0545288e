#include "megatron/kernels/hash.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void add_hash(TensorView hash, ConstView x, int64_t first, int64_t stride, Stream stream) {
  expect_shape(hash.shape, {1}, "add_hash: hash");
  expect_shape(x.shape, {x.size(0), x.size(1)}, "add_hash: x");
  return dispatch<cpu::add_hash, cuda::add_hash>("add_hash", hash, x, first, stride, stream);
}

}  // namespace megatron::kernels
