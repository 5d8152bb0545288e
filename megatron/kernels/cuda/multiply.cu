#include "megatron/kernels/multiply.h"

#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {
namespace {

struct Multiply {
  AnyOutput y;
  AnyInput x, z;
  int64_t period;  // elements of z

  template <int N>
  __device__ void run(int64_t at) const {
    float a[N], b[N];
    x.read(a, at);
    z.read(b, at % period);
#pragma unroll
    for (int i = 0; i < N; ++i) a[i] *= b[i];
    y.write(at, a);
  }
};

}  // namespace

void multiply(TensorView y, ConstView x, ConstView z, Stream stream) {
  const bool is_row = z.shape.rank() == 1;
  expect_shape(x.shape, y.shape, "multiply: x");
  expect_shape(z.shape, is_row ? Shape{y.size(1)} : y.shape, "multiply: z");
  const AnyOutput out = any_output(y, "multiply");
  const AnyInput a = any_input(x, "multiply");
  const AnyInput b = any_input(z, "multiply");
  // Packs do not cross the end of a row.
  const bool aligned = is_aligned(y.data) && is_aligned(x.data) && is_aligned(z.data) &&
                       (!is_row || y.size(1) % kVector == 0);
  for_each_element(y.numel(), aligned, Multiply{out, a, b, z.numel()}, stream);
}

}  // namespace megatron::kernels::cuda
