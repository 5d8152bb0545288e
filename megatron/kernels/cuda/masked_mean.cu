#include "megatron/kernels/cuda/pack.cuh"
#include "megatron/kernels/masked_mean.h"

namespace megatron::kernels::cuda {
namespace {

constexpr int kSumThreads = 1024;

struct Sums {
  double losses;
  double weights;
};

// One block: there is only one float per token, and the order of sums depends only on the count.
__global__ void __launch_bounds__(kSumThreads)
    forward_kernel(float* mean, float* count, const float* losses, const float* mask,
                   const float* divisor, int64_t batch, int64_t length) {
  __shared__ Sums shared[kSumThreads];
  Sums sums{};
  for (int64_t at = threadIdx.x; at < batch * length; at += kSumThreads) {
    const auto i = static_cast<uint32_t>(at) % static_cast<uint32_t>(length);
    const auto j = static_cast<uint32_t>(at) / static_cast<uint32_t>(length);
    const double weight = mask[at];
    const double loss = losses[i * batch + j];
    if (weight != 0) sums.losses += weight * loss;
    sums.weights += weight;
  }
  shared[threadIdx.x] = sums;
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      shared[threadIdx.x].losses += shared[threadIdx.x + half].losses;
      shared[threadIdx.x].weights += shared[threadIdx.x + half].weights;
    }
  }
  if (threadIdx.x != 0) return;
  const double by = divisor == nullptr ? fmax(shared[0].weights, 1.0) : *divisor;
  *mean = static_cast<float>(shared[0].losses / by);
  *count = static_cast<float>(by);
}

__global__ void backward_kernel(float* dlosses, const float* dmean, const float* count,
                                const float* mask, uint32_t batch, int64_t length) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= batch * length) return;
  const float scale = *dmean / *count;
  const auto i = static_cast<uint32_t>(at) / batch;
  const auto j = static_cast<uint32_t>(at) % batch;
  dlosses[at] = scale * mask[j * length + i];
}

void expect_few(int64_t tokens) {
  if (tokens <= INT32_MAX) return;
  throw ShapeError("masked_mean: " + std::to_string(tokens) +
                   " tokens exceed one launch; use a smaller micro-batch");
}

}  // namespace

void masked_mean_forward(TensorView mean, TensorView count, ConstView losses, ConstView mask,
                         ConstView divisor, Stream stream) {
  const int64_t length = losses.size(0);
  const int64_t batch = losses.size(1);
  expect_shape(mask.shape, {batch, length}, "masked_mean: mask");
  expect_few(losses.numel());
  forward_kernel<<<1, kSumThreads, 0, native(stream)>>>(
      mean.as<float>(), count.as<float>(), losses.as<float>(), mask.as<float>(),
      static_cast<const float*>(divisor.data), batch, length);
  MG_CUDA(cudaGetLastError());
}

void masked_mean_backward(TensorView dlosses, ConstView dmean, ConstView count, ConstView mask,
                          Stream stream) {
  const int64_t length = dlosses.size(0);
  const int64_t batch = dlosses.size(1);
  expect_shape(mask.shape, {batch, length}, "masked_mean: mask");
  expect_few(dlosses.numel());
  if (dlosses.numel() == 0) return;
  const auto blocks = static_cast<unsigned>(divided_up(dlosses.numel(), kThreads));
  backward_kernel<<<blocks, kThreads, 0, native(stream)>>>(dlosses.as<float>(), dmean.as<float>(),
                                                           count.as<float>(), mask.as<float>(),
                                                           static_cast<uint32_t>(batch), length);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
