#include "megatron/kernels/elementwise.h"

#include <cooperative_groups.h>

#include "megatron/device/memory.h"
#include "megatron/kernels/cuda/any_double.cuh"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/cuda/pack.cuh"

namespace megatron::kernels::cuda {
namespace {

struct Fill {
  AnyOutput y;
  float value;

  template <int N>
  __device__ void run(int64_t at) const {
    float values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = value;
    y.write(at, values);
  }
};

struct Scale {  // y = alpha x
  AnyOutput y;
  AnyInput x;
  float alpha;

  template <int N>
  __device__ void run(int64_t at) const {
    float values[N];
    x.read(values, at);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] *= alpha;
    y.write(at, values);
  }
};

struct Add {  // y = x + alpha z
  AnyOutput y;
  AnyInput x, z;
  float alpha;

  template <int N>
  __device__ void run(int64_t at) const {
    float a[N], b[N];
    x.read(a, at);
    z.read(b, at);
#pragma unroll
    for (int i = 0; i < N; ++i) a[i] = fmaf(alpha, b[i], a[i]);
    y.write(at, a);
  }
};

struct CastDouble {
  AnyDouble y, x;

  template <int N>
  __device__ void run(int64_t at) const {
#pragma unroll
    for (int i = 0; i < N; ++i) y.write(at + i, x.read(at + i));
  }
};

struct AddDouble {
  double* y;
  const double* x;
  const double* z;
  float alpha;

  template <int N>
  __device__ void run(int64_t at) const {
#pragma unroll
    for (int i = 0; i < N; ++i) y[at + i] = fma(static_cast<double>(alpha), z[at + i], x[at + i]);
  }
};

// y = beta y + the rows of x in order, for fewer rows than a block reads at a time.
constexpr int64_t kFewRows = 16;
struct SumFewRows {
  AnyOutput y;
  AnyInput x;
  int64_t rows, cols;
  float beta;

  template <int N>
  __device__ void run(int64_t at) const {
    float sums[N] = {};
    for (int64_t i = 0; i < rows; ++i) {
      float values[N];
      x.read(values, i * cols + at);
#pragma unroll
      for (int j = 0; j < N; ++j) sums[j] += values[j];
    }
    if (beta != 0) {
      float before[N];
      y.read(before, at);
#pragma unroll
      for (int j = 0; j < N; ++j) sums[j] = fmaf(beta, before[j], sums[j]);
    }
    y.write(at, sums);
  }
};

// Column sums over kColumns columns. Rows are split into kSumParts parts: part b has rows b, b +
// kSumParts, ... of every kSumParts * kSumLanes rows. The partial sums are added in order. This
// needs no scratch, and the order depends only on the shape.
constexpr int kSumParts = 8;
constexpr int kSumThreads = 256;
// Rows that a block of kColumns columns reads at a time.
template <int kColumns>
constexpr int kSumLanes = kSumThreads / (kColumns / kVector);
template <int kColumns>
using ColumnSums = float[kSumLanes<kColumns>][kColumns];  // shared; the first row is the result
// Wide matrices have enough columns for blocks of 128, which read faster.
constexpr int64_t kWideColumns = 4096;

// Adds rows row, row + step, ... of packs to total, with several loads in flight.
template <class T>
__device__ __forceinline__ void add_packs(Floats& total, const T* x, int64_t row, int64_t rows,
                                          int64_t step, int64_t cols) {
  constexpr int kInFlight = 4;
  const auto add = [&total](const RawPack<T>& raw) {
    const Floats pack = unpacked(raw);
#pragma unroll
    for (int j = 0; j < kVector; ++j) total.values[j] += pack.values[j];
  };
  for (; row + (kInFlight - 1) * step < rows; row += kInFlight * step) {
    RawPack<T> raw[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) raw[i] = load_pack(x + (row + i * step) * cols);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) add(raw[i]);
  }
  for (; row < rows; row += step) add(load_pack(x + row * cols));
}

// The sum of one part, for columns from `first` on. REQUIRES: a barrier before reading the result.
template <int kColumns, bool kHasPacks>
__device__ __forceinline__ void sum_part(ColumnSums<kColumns>& sums, const AnyInput& x,
                                         int64_t rows, int64_t cols, int64_t first, unsigned part) {
  constexpr int kLanes = kSumLanes<kColumns>;
  const unsigned slot = threadIdx.x % (kColumns / kVector) * kVector;
  const unsigned lane = threadIdx.x / (kColumns / kVector);
  const int64_t column = first + slot;
  const int64_t row = part * kLanes + lane;
  constexpr int64_t kStep = kSumParts * kLanes;
  Floats total{};
  if constexpr (kHasPacks) {
    if (column < cols) {
      with_type(x.dtype, [&]<class T>(T*) {
        add_packs(total, static_cast<const T*>(x.data) + column, row, rows, kStep, cols);
      });
    }
  } else {
    for (int64_t i = row; i < rows; i += kStep) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (column + j >= cols) break;
        float value[1];
        x.read(value, i * cols + column + j);
        total.values[j] += value[0];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) sums[lane][slot + j] = total.values[j];
  __syncthreads();
  if (threadIdx.x < kColumns) {
    float sum = 0;
    for (int i = 0; i < kLanes; ++i) sum += sums[i][threadIdx.x];
    sums[0][threadIdx.x] = sum;
  }
}

__device__ __forceinline__ void store_sum(const AnyOutput& y, float beta, int64_t column,
                                          float total) {
  float sum[1] = {total};
  if (beta != 0) {
    float before[1];
    y.read(before, column);
    sum[0] = fmaf(beta, before[0], sum[0]);
  }
  y.write(column, sum);
}

// nvcc rejects the attribute when it compiles for a GPU without clusters.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define MG_CLUSTER_OF(blocks)
#else
#define MG_CLUSTER_OF(blocks) __cluster_dims__(blocks, 1, 1)
#endif

// A cluster of blocks, each with one part. The first block adds the sums of the others from their
// shared memory.
template <int kColumns, bool kHasPacks>
__global__ void MG_CLUSTER_OF(kSumParts) __launch_bounds__(kSumThreads)
    sum_rows_kernel(AnyOutput y, AnyInput x, int64_t rows, int64_t cols, float beta) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __shared__ ColumnSums<kColumns> sums;
  const auto cluster = cooperative_groups::this_cluster();
  const unsigned part = cluster.block_rank();
  const int64_t first = static_cast<int64_t>(blockIdx.x / kSumParts) * kColumns;
  sum_part<kColumns, kHasPacks>(sums, x, rows, cols, first, part);
  cluster.sync();
  if (part == 0 && threadIdx.x < kColumns && first + threadIdx.x < cols) {
    float sum = 0;
    for (unsigned b = 0; b < kSumParts; ++b) {
      sum += *cluster.map_shared_rank(&sums[0][threadIdx.x], b);
    }
    store_sum(y, beta, first + threadIdx.x, sum);
  }
  cluster.sync();  // the other blocks' shared memory must outlive the reads
#endif
}

// The same without clusters: one block computes all parts in turn.
template <int kColumns, bool kHasPacks>
__global__ void __launch_bounds__(kSumThreads)
    sum_rows_alone_kernel(AnyOutput y, AnyInput x, int64_t rows, int64_t cols, float beta) {
  __shared__ ColumnSums<kColumns> sums;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns;
  float sum = 0;
  for (unsigned part = 0; part < kSumParts; ++part) {
    sum_part<kColumns, kHasPacks>(sums, x, rows, cols, first, part);
    if (threadIdx.x < kColumns) sum += sums[0][threadIdx.x];  // written by this thread
    __syncthreads();
  }
  if (threadIdx.x < kColumns && first + threadIdx.x < cols) {
    store_sum(y, beta, first + threadIdx.x, sum);
  }
}

template <int kColumns, bool kHasPacks>
void launch_sum_rows(const AnyOutput& y, const AnyInput& x, int64_t rows, int64_t cols, float beta,
                     Stream stream) {
  const auto groups = static_cast<unsigned>((cols + kColumns - 1) / kColumns);
  const auto kernel = sum_rows_kernel<kColumns, kHasPacks>;
  if (has_clusters(reinterpret_cast<const void*>(kernel), stream.device)) {
    kernel<<<groups * kSumParts, kSumThreads, 0, native(stream)>>>(y, x, rows, cols, beta);
  } else {
    sum_rows_alone_kernel<kColumns, kHasPacks>
        <<<groups, kSumThreads, 0, native(stream)>>>(y, x, rows, cols, beta);
  }
  MG_CUDA(cudaGetLastError());
}

// for_each_element with 16-byte accesses of the widest operand: half the vector if one is fp32, so
// that a warp reads and writes contiguous memory.
template <class F, class... Operands>
void run(int64_t n, const F& f, Stream stream, const Operands&... operands) {
  const bool aligned = (is_aligned(operands.data) && ...);
  const bool has_fp32 = ((operands.dtype == DType::kFloat32) || ...);
  if (!aligned || !has_fp32 || n == 0) return for_each_element(n, aligned, f, stream);
  constexpr int kHalf = kVector / 2;
  for_each_kernel<kHalf><<<blocks_for(n, kThreads * kHalf), kThreads, 0, native(stream)>>>(n, f);
  MG_CUDA(cudaGetLastError());
}

}  // namespace

void fill(TensorView y, float value, Stream stream) {
  const AnyOutput out = any_output(y, "fill");
  run(y.numel(), Fill{out, value}, stream, out);
}

void cast(TensorView y, ConstView x, Stream stream) {
  expect_shape(x.shape, y.shape, "cast: x");
  if (x.dtype == y.dtype) return copy_bytes(y.data, x.data, x.bytes(), stream);
  if (x.dtype == DType::kFloat64 || y.dtype == DType::kFloat64) {
    return for_each_element(y.numel(), false,
                            CastDouble{any_double(y, "cast"), any_double(x, "cast")}, stream);
  }
  const AnyOutput out = any_output(y, "cast");
  const AnyInput in = any_input(x, "cast");
  run(y.numel(), Scale{out, in, 1.0f}, stream, out, in);
}

void add(TensorView y, ConstView x, ConstView z, float alpha, Stream stream) {
  expect_shape(x.shape, y.shape, "add: x");
  expect_shape(z.shape, y.shape, "add: z");
  if (y.dtype == DType::kFloat64) {
    const AddDouble sum{y.as<double>(), x.as<double>(), z.as<double>(), alpha};
    return for_each_element(y.numel(), false, sum, stream);
  }
  const AnyOutput out = any_output(y, "add");
  const AnyInput a = any_input(x, "add");
  const AnyInput b = any_input(z, "add");
  run(y.numel(), Add{out, a, b, alpha}, stream, out, a, b);
}

void scale(TensorView y, ConstView x, float alpha, Stream stream) {
  expect_shape(x.shape, y.shape, "scale: x");
  const AnyOutput out = any_output(y, "scale");
  const AnyInput in = any_input(x, "scale");
  run(y.numel(), Scale{out, in, alpha}, stream, out, in);
}

void sum_rows(TensorView y, ConstView x, float beta, Stream stream) {
  const int64_t rows = x.size(0);
  const int64_t cols = x.size(1);
  expect_shape(y.shape, {cols}, "sum_rows: y");
  if (cols == 0) return;
  const AnyOutput out = any_output(y, "sum_rows");
  const AnyInput in = any_input(x, "sum_rows");
  if (rows <= kFewRows) {
    const SumFewRows sum{out, in, rows, cols, beta};
    if (cols % kVector == 0) return run(cols, sum, stream, out, in);
    return for_each_element(cols, false, sum, stream);
  }
  if (!is_aligned(x.data) || cols % kVector != 0) {
    launch_sum_rows<64, false>(out, in, rows, cols, beta, stream);
  } else if (cols < kWideColumns) {
    launch_sum_rows<64, true>(out, in, rows, cols, beta, stream);
  } else {
    launch_sum_rows<128, true>(out, in, rows, cols, beta, stream);
  }
}

}  // namespace megatron::kernels::cuda
