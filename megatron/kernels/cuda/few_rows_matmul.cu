#include "megatron/kernels/cuda/few_rows_matmul.h"

#include <cooperative_groups.h>

#include <algorithm>

#include "megatron/device/cuda.h"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/mma.cuh"
#include "megatron/kernels/cuda/overlap.cuh"

// The tensor cores multiply x, as rows of a 16-row matrix, with 8 rows of the weight. Sums have any
// order of terms as long as both factors have the same one, so a lane takes 8 adjacent elements of
// a row of either factor with one access: 4 lanes have a chunk of 32.
namespace megatron::kernels::cuda {
namespace {

constexpr int kChunk = 32;  // elements of a row that 4 lanes have
constexpr int kLaneElements = 8;
constexpr int kTileRows = 8;  // of the weight
constexpr int kMaxWarps = 8;
// Bytes of a weight row that a block has read into the cache while it waits for earlier kernels.
constexpr int kAheadBytes = 8192;

struct Problem {
  void* y;
  const void* x;
  const void* weight;
  const void* bias;  // may be null
  int m, n, k;
  bool has_gelu;
};

__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(__cvta_generic_to_global(p)));
  return value;
}

// Asks for bytes, a multiple of 16, to be read into the L2 cache.
__device__ __forceinline__ void read_ahead(const void* p, unsigned bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(p)),
               "r"(bytes)
               : "memory");
#endif
}

// A warp's chunks of the terms: first, first + step, ... below end.
struct Chunks {
  int first, step, end;
};

// The lane's elements of kDepth chunks of kTiles * 8 rows of the weight.
template <class T, int kTiles, int kDepth>
struct WeightPart {
  uint4 words[kDepth][kTiles];

  __device__ __forceinline__ void load(const T* const (&rows)[kTiles], const Chunks& chunks,
                                       int chunk, int lane_column, int k) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int at = chunk + d * chunks.step;
      const int column = at * kChunk + lane_column;
      const bool is_inside = at < chunks.end && column < k;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        words[d][t] = is_inside ? load_once(rows[t] + column) : uint4{};
      }
    }
  }
};

__device__ __forceinline__ float gelu_tanh(float x) {
  constexpr float kTwiceRootTwoOverPi = 1.5957691216057308f;
  const float u = kTwiceRootTwoOverPi * (x + 0.044715f * x * x * x);
  return x / (1.0f + __expf(-u));
}

// kTiles * 8 columns of y for at most 8 * kHalves rows.
template <class T, int kTiles, int kHalves>
__global__ void __launch_bounds__(kMaxWarps* kWarp) few_rows_kernel(const Problem p) {
  constexpr int kDepth = kTiles == 1 ? 4 : kTiles == 2 ? 3 : 2;
  constexpr int kColumns = kTiles * kTileRows;
  constexpr int kOutputs = 8 * kHalves * kColumns;
  __shared__ float partial[kMaxWarps][kOutputs];
  __shared__ float of_block[kOutputs];
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
  const int c = static_cast<int>(threadIdx.x) % 4;
  const int slices = static_cast<int>(gridDim.x);
  const int slice = static_cast<int>(blockIdx.x);
  const int first_column = static_cast<int>(blockIdx.y) * kColumns;

  const int num_chunks = (p.k + kChunk - 1) / kChunk;
  const int per_slice = (num_chunks + slices - 1) / slices;
  const int begin = slice * per_slice;
  const Chunks chunks{begin + warp, warps, min(begin + per_slice, num_chunks)};
  const T* const weight = static_cast<const T*>(p.weight);
  const T* rows[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int row = min(first_column + t * kTileRows + g, p.n - 1);
    rows[t] = weight + static_cast<int64_t>(row) * p.k;
  }
  const int lane_column = c * kLaneElements;

  if (threadIdx.x < kColumns && first_column + static_cast<int>(threadIdx.x) < p.n) {
    const int from = begin * kChunk;
    const int bytes = (min(chunks.end * kChunk, p.k) - from) * static_cast<int>(sizeof(T));
    const int64_t row = first_column + static_cast<int>(threadIdx.x);
    if (bytes > 0) {
      read_ahead(weight + row * p.k + from, static_cast<unsigned>(min(bytes, kAheadBytes)));
    }
  }
  let_next_kernel_start();
  wait_for_earlier_kernels();

  WeightPart<T, kTiles, kDepth> now, next;
  now.load(rows, chunks, chunks.first, lane_column, p.k);
  float sums[kTiles][4] = {};
  const T* const x = static_cast<const T*>(p.x);
  for (int chunk = chunks.first; chunk < chunks.end; chunk += kDepth * chunks.step) {
    next.load(rows, chunks, chunk + kDepth * chunks.step, lane_column, p.k);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int at = chunk + d * chunks.step;
      const int column = at * kChunk + lane_column;
      const bool is_inside = at < chunks.end && column < p.k;
      uint4 a[2] = {};
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const int row = g + 8 * half;
        if (is_inside && row < p.m) {
          a[half] = *reinterpret_cast<const uint4*>(x + static_cast<int64_t>(row) * p.k + column);
        }
      }
      const uint32_t first[4] = {a[0].x, a[1].x, a[0].y, a[1].y};
      const uint32_t second[4] = {a[0].z, a[1].z, a[0].w, a[1].w};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply_add<T>(sums[t], first, now.words[d][t].x, now.words[d][t].y);
        multiply_add<T>(sums[t], second, now.words[d][t].z, now.words[d][t].w);
      }
    }
    now = next;
  }

#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int at = (g + 8 * half) * kColumns + t * kTileRows + 2 * c;
      partial[warp][at] = sums[t][2 * half];
      partial[warp][at + 1] = sums[t][2 * half + 1];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kOutputs; i += static_cast<int>(blockDim.x)) {
    float sum = 0;
    for (int w = 0; w < warps; ++w) sum += partial[w][i];
    of_block[i] = sum;
  }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const auto cluster = cooperative_groups::this_cluster();
  if (slices > 1) cluster.sync();
#endif
  if (slice == 0) {
    for (int i = static_cast<int>(threadIdx.x); i < kOutputs; i += static_cast<int>(blockDim.x)) {
      const int row = i / kColumns;
      const int column = first_column + i % kColumns;
      if (row >= p.m || column >= p.n) continue;
      float sum = of_block[i];  // written by this thread
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
      for (int other = 1; other < slices; ++other) {
        sum += *cluster.map_shared_rank(&of_block[i], static_cast<unsigned>(other));
      }
#endif
      if (p.bias != nullptr) sum += to_float(static_cast<const T*>(p.bias)[column]);
      if (p.has_gelu) sum = gelu_tanh(sum);
      static_cast<T*>(p.y)[static_cast<int64_t>(row) * p.n + column] = from_float<T>(sum);
    }
  }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (slices > 1) cluster.sync();  // the other blocks' shared memory must outlive the reads
#endif
}

template <class T, int kTiles, int kHalves>
void launch(const Problem& problem, const FewRowsPlan& plan, Stream stream) {
  const auto kernel = few_rows_kernel<T, kTiles, kHalves>;
  const bool is_new = has_clusters(reinterpret_cast<const void*>(kernel), stream.device);
  const auto slices = static_cast<unsigned>(is_new ? plan.slices : 1);
  const auto tiles =
      static_cast<unsigned>((problem.n + kTiles * kTileRows - 1) / (kTiles * kTileRows));
  launch_overlapped(kernel,
                    {.grid = dim3(slices, tiles),
                     .block = dim3(static_cast<unsigned>(plan.warps * kWarp)),
                     .cluster = slices,
                     .overlaps = is_new},
                    stream, problem);
}

template <class T>
void launch(const Problem& problem, const FewRowsPlan& plan, Stream stream) {
  const bool is_half = problem.m <= 8;
  switch (plan.weight_tiles) {
    case 1:
      return is_half ? launch<T, 1, 1>(problem, plan, stream)
                     : launch<T, 1, 2>(problem, plan, stream);
    case 2:
      return is_half ? launch<T, 2, 1>(problem, plan, stream)
                     : launch<T, 2, 2>(problem, plan, stream);
    default:
      return is_half ? launch<T, 4, 1>(problem, plan, stream)
                     : launch<T, 4, 2>(problem, plan, stream);
  }
}

}  // namespace

FewRowsPlan few_rows_plan(int64_t n, int64_t k, Device device) {
  // Enough blocks to fill the GPU twice, and chunks for every warp.
  const int64_t wanted = 2 * megatron::cuda::properties(device.index).num_multiprocessors;
  FewRowsPlan plan{.weight_tiles = n >= 16 * wanted ? 2 : 1};
  const int64_t blocks = n / (kTileRows * plan.weight_tiles);
  while (plan.slices < 8 && blocks * plan.slices < wanted &&
         k / (kChunk * plan.slices * 2 * plan.warps) >= 2) {
    plan.slices *= 2;
  }
  return plan;
}

bool few_rows_matmul(TensorView y, ConstView x, ConstView weight, ConstView bias, bool has_gelu,
                     Stream stream) {
  if (x.size(0) > kMostFewRows) return false;
  return few_rows_matmul(y, x, weight, bias, has_gelu,
                         few_rows_plan(weight.size(0), weight.size(1), stream.device), stream);
}

bool few_rows_matmul(TensorView y, ConstView x, ConstView weight, ConstView bias, bool has_gelu,
                     const FewRowsPlan& plan, Stream stream) {
  const int64_t k = x.size(1);
  const bool is_half = y.dtype == DType::kBFloat16 || y.dtype == DType::kFloat16;
  if (x.size(0) > kMostFewRows || y.numel() == 0 || k == 0 || k % kLaneElements != 0 || !is_half ||
      x.dtype != y.dtype || weight.dtype != y.dtype ||
      (bias.data != nullptr && bias.dtype != y.dtype) || !is_aligned(x.data) ||
      !is_aligned(weight.data)) {
    return false;
  }
  const Problem problem{.y = y.data,
                        .x = x.data,
                        .weight = weight.data,
                        .bias = bias.data,
                        .m = static_cast<int>(x.size(0)),
                        .n = static_cast<int>(weight.size(0)),
                        .k = static_cast<int>(k),
                        .has_gelu = has_gelu};
  if (y.dtype == DType::kBFloat16) {
    launch<BFloat16>(problem, plan, stream);
  } else {
    launch<Float16>(problem, plan, stream);
  }
  return true;
}

}  // namespace megatron::kernels::cuda
