#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/relative_bias.h"

namespace megatron::kernels::cuda {
namespace {

// A thread for a query and a key.
__global__ void __launch_bounds__(kThreads)
    forward_kernel(float* bias, const float* table, const int64_t* buckets, int64_t heads,
                   int64_t queries, int64_t keys) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= queries * keys) return;
  const int64_t query = at / keys;
  const float* const row = table + buckets[at % keys - query + queries - 1] * heads;
  for (int64_t head = 0; head < heads; ++head) bias[head * queries * keys + at] = row[head];
}

// A block sums one element of the table: it passes over all pairs of the head and adds those of its
// bucket. Each thread's part, and the order of the parts, depend on the shape alone.
__global__ void __launch_bounds__(kThreads)
    backward_kernel(float* dtable, const float* dbias, const int64_t* buckets, int64_t heads,
                    int64_t queries, int64_t keys) {
  __shared__ double shared[kWarp];
  const int64_t bucket = blockIdx.x;
  const int64_t head = blockIdx.y;
  double sum = 0;
  for (int64_t query = 0; query < queries; ++query) {
    const float* const row = dbias + (head * queries + query) * keys;
    const int64_t* const of_row = buckets + queries - 1 - query;
    for (int64_t key = threadIdx.x; key < keys; key += kThreads) {
      if (of_row[key] == bucket) sum += static_cast<double>(row[key]);
    }
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) dtable[bucket * heads + head] = static_cast<float>(sum);
}

}  // namespace

void relative_bias_forward(TensorView bias, ConstView table, ConstView buckets, Stream stream) {
  const int64_t queries = bias.size(1);
  const int64_t keys = bias.size(2);
  if (bias.numel() == 0) return;
  forward_kernel<<<static_cast<unsigned>((queries * keys + kThreads - 1) / kThreads), kThreads, 0,
                   native(stream)>>>(bias.as<float>(), table.as<float>(), buckets.as<int64_t>(),
                                     bias.size(0), queries, keys);
  MG_CUDA(cudaGetLastError());
}

void relative_bias_backward(TensorView dtable, ConstView dbias, ConstView buckets, Stream stream) {
  if (dtable.numel() == 0) return;
  const dim3 grid(static_cast<unsigned>(dtable.size(0)), static_cast<unsigned>(dtable.size(1)));
  backward_kernel<<<grid, kThreads, 0, native(stream)>>>(dtable.as<float>(), dbias.as<float>(),
                                                         buckets.as<int64_t>(), dbias.size(0),
                                                         dbias.size(1), dbias.size(2));
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
