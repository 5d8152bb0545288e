#include "megatron/kernels/attention.h"
#include "megatron/kernels/cuda/attention_problem.cuh"

namespace megatron::kernels::cuda {
namespace {

// One warp for each query of a head.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_sinks_kernel(DeviceHeads<T> out, float* lse, const float* sinks, int64_t rows, int64_t s,
                     int heads, int d) {
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t pair = row / s;
  const int head = static_cast<int>(pair % heads);
  const float sink = sinks[head];
  const float before = lse[row] == infinity() ? -infinity() : lse[row];  // no key is seen
  const float largest = larger(before, sink);
  const float after = largest + logf(expf(before - largest) + expf(sink - largest));
  const float kept = expf(before - after);
  __syncwarp();
  if (lane == 0) lse[row] = after;
  T* const to = out.row(pair / heads, head, row % s);
  for (int c = lane; c < d; c += kWarp) to[c] = from_float<T>(to_float(to[c]) * kept);
}

constexpr int kSinkThreads = 1024;

// One block for each head. Its warps take the queries of all samples in turn, several at once.
template <class T>
__global__ void __launch_bounds__(kSinkThreads)
    sink_gradients_kernel(float* dsinks, DeviceHeads<const T> dout, DeviceHeads<const T> out,
                          const float* lse, const float* sinks, int64_t b, int64_t s, int heads,
                          int d) {
  constexpr int kWarps = kSinkThreads / kWarp;
  constexpr int kAtOnce = 4;
  __shared__ float sums[kWarps];
  const int head = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float sink = sinks[head];
  float sum = 0;
  for (int64_t first = warp; first < b * s; first += kWarps * kAtOnce) {
    const T* rows[kAtOnce];
    const T* drows[kAtOnce];
    float probabilities[kAtOnce];
    float deltas[kAtOnce] = {};
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t at = first + j * kWarps;
      const bool is_inside = at < b * s;
      const int64_t batch = is_inside ? at / s : 0;
      const int64_t i = is_inside ? at % s : 0;
      rows[j] = out.row(batch, head, i);
      drows[j] = dout.row(batch, head, i);
      probabilities[j] = is_inside ? expf(sink - lse[(batch * heads + head) * s + i]) : 0.0f;
    }
    for (int c = lane; c < d; c += kWarp) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) deltas[j] += to_float(rows[j][c]) * to_float(drows[j][c]);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) sum -= probabilities[j] * deltas[j];
  }
  sum = warp_sum(sum);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0;
  for (const float part : sums) total += part;
  dsinks[head] = total;
}

}  // namespace

void add_attention_sinks(HeadsView out, TensorView lse, ConstView sinks, Stream stream) {
  const int64_t rows = lse.numel();
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>((rows * kWarp + kThreads - 1) / kThreads);
  dispatch_floating(out.dtype, "add_attention_sinks", [&]<class T>() {
    add_sinks_kernel<T><<<blocks, kThreads, 0, native(stream)>>>(
        heads_on_device<T>(out), lse.as<float>(), sinks.as<float>(), rows, out.s,
        static_cast<int>(out.heads), static_cast<int>(out.d));
    MG_CUDA(cudaGetLastError());
  });
}

void attention_sink_gradients(TensorView dsinks, ConstHeadsView dout, ConstHeadsView out,
                              ConstView lse, ConstView sinks, Stream stream) {
  if (out.heads == 0) return;
  dispatch_floating(out.dtype, "attention_sink_gradients", [&]<class T>() {
    sink_gradients_kernel<T><<<static_cast<unsigned>(out.heads), kSinkThreads, 0, native(stream)>>>(
        dsinks.as<float>(), heads_on_device<const T>(dout), heads_on_device<const T>(out),
        lse.as<float>(), sinks.as<float>(), out.b, out.s, static_cast<int>(out.heads),
        static_cast<int>(out.d));
    MG_CUDA(cudaGetLastError());
  });
}

}  // namespace megatron::kernels::cuda
