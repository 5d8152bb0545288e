#include "megatron/kernels/fp8_rows.h"

#include "megatron/core/error.h"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/fp8_pack.cuh"
#include "megatron/kernels/cuda/overlap.cuh"

namespace megatron::kernels::cuda {
namespace {

constexpr int kPacksOfThread = 4;  // that stay in registers

// Block x has row x: it finds the largest element, then reads the row again where it does not fit
// the registers.
template <class T, __nv_fp8_interpretation_t kType>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(uint2* numbers, float* scales, const T* x, int packs) {
  __shared__ float shared[kWarp];
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const T* const row = x + int64_t{blockIdx.x} * packs * kVector;
  RawPack<T> kept[kPacksOfThread];
  float largest = 0;
  const auto add = [&](const RawPack<T>& raw) {
    largest = larger(largest, largest_of(unpacked(raw)));
  };
#pragma unroll
  for (int n = 0; n < kPacksOfThread; ++n) {
    const int i = n * kThreads + static_cast<int>(threadIdx.x);
    if (i < packs) kept[n] = load_pack(row + i * kVector);
  }
#pragma unroll
  for (int n = 0; n < kPacksOfThread; ++n) {
    if (n * kThreads + static_cast<int>(threadIdx.x) < packs) add(kept[n]);
  }
  constexpr int kRest = kPacksOfThread * kThreads;
  for (int i = kRest + static_cast<int>(threadIdx.x); i < packs; i += kThreads) {
    add(load_pack(row + i * kVector));
  }
  largest = warp_max(largest);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = largest;
  __syncthreads();
  largest = warp_max(threadIdx.x % kWarp < kThreads / kWarp ? shared[threadIdx.x % kWarp] : 0.0f);
  const float scale = fp8_row_scale<kType>(largest);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;

  const auto store_numbers = [&](int i, const RawPack<T>& raw) {
    numbers[int64_t{blockIdx.x} * packs + i] = fp8_numbers<kType>(unpacked(raw), scale);
  };
#pragma unroll
  for (int n = 0; n < kPacksOfThread; ++n) {
    const int i = n * kThreads + static_cast<int>(threadIdx.x);
    if (i < packs) store_numbers(i, kept[n]);
  }
  for (int i = kRest + static_cast<int>(threadIdx.x); i < packs; i += kThreads) {
    store_numbers(i, load_pack(row + i * kVector));
  }
}

constexpr int kPacksOfLane = 8;
constexpr int64_t kManyRows = 1024;  // enough for a warp each

// A warp has a row of at most kPacksOfLane * kWarp packs.
template <class T, __nv_fp8_interpretation_t kType>
__global__ void __launch_bounds__(kThreads)
    quantize_by_warps_kernel(uint2* numbers, float* scales, const T* x, int64_t rows, int packs) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / kWarp;
  if (row >= rows) return;
  RawPack<T> kept[kPacksOfLane];
#pragma unroll
  for (int n = 0; n < kPacksOfLane; ++n) {
    const int i = n * kWarp + lane;
    if (i < packs) kept[n] = load_pack(x + (row * packs + i) * kVector);
  }
  float largest = 0;
#pragma unroll
  for (int n = 0; n < kPacksOfLane; ++n) {
    if (n * kWarp + lane < packs) largest = larger(largest, largest_of(unpacked(kept[n])));
  }
  const float scale = fp8_row_scale<kType>(warp_max(largest));
  if (lane == 0) scales[row] = scale;
#pragma unroll
  for (int n = 0; n < kPacksOfLane; ++n) {
    const int i = n * kWarp + lane;
    if (i < packs) numbers[row * packs + i] = fp8_numbers<kType>(unpacked(kept[n]), scale);
  }
}

template <class F>
void dispatch_type(DType dtype, const F& f) {
  expect_floating(dtype, "fp8_quantize_rows");
  if (dtype == DType::kBFloat16) return f.template operator()<BFloat16>();
  if (dtype == DType::kFloat16) return f.template operator()<Float16>();
  f.template operator()<float>();
}

}  // namespace

void fp8_quantize_rows(TensorView numbers, TensorView scales, ConstView x, Stream stream) {
  if (x.numel() == 0) return;
  if (x.size(1) % 16 != 0 || !is_aligned(x.data) || !is_aligned(numbers.data)) {
    throw ShapeError("fp8_quantize_rows: rows of " + std::to_string(x.size(1)) +
                     " elements must be multiples of 16 and start at multiples of 16 bytes");
  }
  const int64_t packs = x.size(1) / kVector;
  const bool is_e5m2 = numbers.dtype == DType::kFloat8E5M2;
  dispatch_type(x.dtype, [&]<class T>() {
    if (x.size(0) >= kManyRows && packs <= kPacksOfLane * kWarp) {
      const auto kernel =
          is_e5m2 ? quantize_by_warps_kernel<T, __NV_E5M2> : quantize_by_warps_kernel<T, __NV_E4M3>;
      const auto blocks = static_cast<unsigned>((x.size(0) * kWarp + kThreads - 1) / kThreads);
      kernel<<<blocks, kThreads, 0, native(stream)>>>(static_cast<uint2*>(numbers.data),
                                                      scales.as<float>(), x.as<T>(), x.size(0),
                                                      static_cast<int>(packs));
      MG_CUDA(cudaGetLastError());
      return;
    }
    const auto kernel = is_e5m2 ? quantize_kernel<T, __NV_E5M2> : quantize_kernel<T, __NV_E4M3>;
    launch_overlapped(
        kernel,
        {.grid = dim3(static_cast<unsigned>(x.size(0))),
         .block = dim3(kThreads),
         .overlaps = has_clusters(reinterpret_cast<const void*>(kernel), stream.device)},
        stream, static_cast<uint2*>(numbers.data), scales.as<float>(), x.as<T>(),
        static_cast<int>(packs));
  });
}

}  // namespace megatron::kernels::cuda
