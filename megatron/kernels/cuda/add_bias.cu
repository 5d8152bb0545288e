#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/cuda/matmul_plans.h"

namespace megatron::kernels::cuda {
namespace {

template <class C, class B>
__global__ void __launch_bounds__(kThreads)
    add_bias_kernel(C* c, const float* product, const B* bias, float beta, int64_t numel,
                    int64_t cols) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < numel; i += step) {
    float sum = product == nullptr ? 0.0f : product[i];
    if (beta != 0) sum += beta * to_float(c[i]);
    if (bias != nullptr) sum += to_float(bias[i % cols]);
    c[i] = from_float<C>(sum);
  }
}

}  // namespace

void add_bias(TensorView c, const float* product, ConstView bias, float beta, Stream stream) {
  if (c.numel() == 0) return;
  const DType bias_dtype = bias.data == nullptr ? DType::kFloat32 : bias.dtype;
  dispatch_floating(c.dtype, "matmul", [&]<class C>() {
    dispatch_floating(bias_dtype, "matmul", [&]<class B>() {
      add_bias_kernel<<<blocks_for(c.numel(), kThreads), kThreads, 0, native(stream)>>>(
          c.as<C>(), product, static_cast<const B*>(bias.data), beta, c.numel(), c.size(1));
      MG_CUDA(cudaGetLastError());
    });
  });
}

}  // namespace megatron::kernels::cuda
