#include <algorithm>
#include <string>

#include "megatron/comm/peer/element.cuh"
#include "megatron/comm/peer/sum.h"
#include "megatron/core/error.h"
#include "megatron/core/half.h"
#include "megatron/device/cuda/check.h"

namespace megatron::comm::peer {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 132 * 4;  // loops over the grid do the rest
constexpr int kVectorBytes = 16;
constexpr int kInputsAhead = 4;  // loaded before the first add, to hide other GPUs' latency

struct Inputs {
  const void* data[kMaxInputs];
  int count;
};

// Reduces elements [at, at + N) in the order of the inputs.
template <class T, Reduce kOp, int N>
__device__ __forceinline__ void reduce_at(T* out, const Inputs& in, int64_t at) {
  const auto read = [&](int i) {
    return *reinterpret_cast<const Pack<T, N>*>(static_cast<const T*>(in.data[i]) + at);
  };
  SumOf<T> sum[N];
  const Pack<T, N> first = read(0);
#pragma unroll
  for (int j = 0; j < N; ++j) sum[j] = widened(first.elements[j]);
  const auto add = [&](const Pack<T, N>& x) {
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] = combined<kOp>(sum[j], widened(x.elements[j]));
  };
  int i = 1;
  for (; i + kInputsAhead <= in.count; i += kInputsAhead) {
    Pack<T, N> x[kInputsAhead];
#pragma unroll
    for (int k = 0; k < kInputsAhead; ++k) x[k] = read(i + k);
#pragma unroll
    for (int k = 0; k < kInputsAhead; ++k) add(x[k]);
  }
  for (; i < in.count; ++i) add(read(i));
  Pack<T, N> result;
#pragma unroll
  for (int j = 0; j < N; ++j) result.elements[j] = rounded<T>(sum[j]);
  *reinterpret_cast<Pack<T, N>*>(out + at) = result;
}

template <class T, Reduce kOp, int N>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(T* out, const __grid_constant__ Inputs in, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t vectors = count / N;
  for (int64_t i = thread; i < vectors; i += step) reduce_at<T, kOp, N>(out, in, i * N);
  if constexpr (N > 1) {
    for (int64_t i = vectors * N + thread; i < count; i += step) reduce_at<T, kOp, 1>(out, in, i);
  }
}

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0; }

template <class T, Reduce kOp>
void launch(void* out, const Inputs& in, int64_t count, cudaStream_t stream) {
  const bool is_vector = is_aligned(out) && std::all_of(in.data, in.data + in.count, is_aligned);
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));
  const int64_t per_block = kThreads * (is_vector ? kVector : 1);
  const auto blocks = static_cast<unsigned>(
      std::clamp<int64_t>((count + per_block - 1) / per_block, 1, kMaxBlocks));
  T* const result = static_cast<T*>(out);
  if (is_vector) {
    reduce_kernel<T, kOp, kVector><<<blocks, kThreads, 0, stream>>>(result, in, count);
  } else {
    reduce_kernel<T, kOp, 1><<<blocks, kThreads, 0, stream>>>(result, in, count);
  }
  MG_CUDA(cudaGetLastError());
}

template <class T>
void reduce_as(void* out, const Inputs& in, int64_t count, Reduce op, cudaStream_t stream) {
  if (op == Reduce::kSum) {
    launch<T, Reduce::kSum>(out, in, count, stream);
  } else {
    launch<T, Reduce::kMax>(out, in, count, stream);
  }
}

}  // namespace

void reduce_in_order(void* out, std::span<const void* const> in, int64_t count, DType dtype,
                     Reduce op, cudaStream_t stream) {
  invariant(!in.empty() && in.size() <= kMaxInputs, "a reduction has 1 to 64 inputs");
  if (count == 0) return;
  Inputs inputs{};
  std::copy(in.begin(), in.end(), inputs.data);
  inputs.count = static_cast<int>(in.size());
  switch (dtype) {
    case DType::kFloat32:
      return reduce_as<float>(out, inputs, count, op, stream);
    case DType::kFloat16:
      return reduce_as<Float16>(out, inputs, count, op, stream);
    case DType::kBFloat16:
      return reduce_as<BFloat16>(out, inputs, count, op, stream);
    case DType::kFloat64:
      return reduce_as<double>(out, inputs, count, op, stream);
    case DType::kInt64:
      return reduce_as<int64_t>(out, inputs, count, op, stream);
    case DType::kInt32:
      return reduce_as<int32_t>(out, inputs, count, op, stream);
    default:
      throw DtypeError("elements of " + std::string(megatron::name_of(dtype)) +
                       " cannot be reduced");
  }
}

}  // namespace megatron::comm::peer
