#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/relative_bias.h"

namespace megatron::kernels::cuda {
namespace {

// One thread for each distance.
__global__ void __launch_bounds__(kThreads)
    forward_kernel(float* bias, const float* table, const int64_t* buckets, int64_t heads,
                   int64_t distances) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= distances) return;
  const float* const row = table + buckets[i] * heads;
  for (int64_t head = 0; head < heads; ++head) bias[head * distances + i] = row[head];
}

// One block for each element of the table: it sums the gradients of all distances in the bucket.
// The partition over threads, and the order of sums, depend only on the shape.
__global__ void __launch_bounds__(kThreads)
    backward_kernel(float* dtable, const float* dbias, const int64_t* buckets, int64_t heads,
                    int64_t distances) {
  __shared__ double shared[kWarp];
  const int64_t bucket = blockIdx.x;
  const int64_t head = blockIdx.y;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < distances; i += kThreads) {
    if (buckets[i] == bucket) sum += static_cast<double>(dbias[head * distances + i]);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) dtable[bucket * heads + head] = static_cast<float>(sum);
}

}  // namespace

void relative_bias_forward(TensorView bias, ConstView table, ConstView buckets, Stream stream) {
  if (bias.numel() == 0) return;
  const int64_t blocks = (bias.size(1) + kThreads - 1) / kThreads;
  forward_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(
      bias.as<float>(), table.as<float>(), buckets.as<int64_t>(), bias.size(0), bias.size(1));
  MG_CUDA(cudaGetLastError());
}

void relative_bias_backward(TensorView dtable, ConstView dbias, ConstView buckets, Stream stream) {
  if (dtable.numel() == 0) return;
  const dim3 grid(static_cast<unsigned>(dtable.size(0)), static_cast<unsigned>(dtable.size(1)));
  backward_kernel<<<grid, kThreads, 0, native(stream)>>>(
      dtable.as<float>(), dbias.as<float>(), buckets.as<int64_t>(), dbias.size(0), dbias.size(1));
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
