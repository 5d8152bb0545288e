#include "megatron/kernels/expert_rows.h"

#include "megatron/core/error.h"
#include "megatron/kernels/cuda/fp8_pack.cuh"
#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {
namespace {

// --- The order of rows ---

constexpr int kSlots = 1024;  // of a block: one for each thread
constexpr int kBlockWarps = kSlots / kWarp;
constexpr int kMaxLocalExperts = 512;

// The local expert of a slot, -1: none here.
struct LocalExperts {
  const int* ids;
  int64_t slots;
  int first, experts;

  __device__ __forceinline__ int of(int64_t slot) const {
    if (slot >= slots || ids[slot] < 0) return -1;
    const int local = ids[slot] - first;
    return local >= 0 && local < experts ? local : -1;
  }
};

// counts[block, e] = slots of the block with expert e.
__global__ void __launch_bounds__(kSlots) count_slots_kernel(int* counts, LocalExperts local) {
  extern __shared__ int of_expert[];
  for (int e = static_cast<int>(threadIdx.x); e < local.experts; e += kSlots) of_expert[e] = 0;
  __syncthreads();
  const int expert = local.of(static_cast<int64_t>(blockIdx.x) * kSlots + threadIdx.x);
  if (expert >= 0) atomicAdd(of_expert + expert, 1);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < local.experts; e += kSlots) {
    counts[static_cast<int64_t>(blockIdx.x) * local.experts + e] = of_expert[e];
  }
}

// offsets, and counts[block, e] becomes the row of the block's first slot of e. One block, a thread
// for each expert.
__global__ void __launch_bounds__(kMaxLocalExperts)
    expert_offsets_kernel(int* offsets, int* counts, int blocks, int experts) {
  __shared__ int sums[kMaxLocalExperts];
  const int e = static_cast<int>(threadIdx.x);
  int sum = 0;
  if (e < experts) {
    for (int b = 0; b < blocks; ++b) sum += counts[static_cast<int64_t>(b) * experts + e];
  }
  sums[e] = sum;
  __syncthreads();
  int first = 0;
  for (int i = 0; i < e && i < experts; ++i) first += sums[i];
  if (e >= experts) return;
  offsets[e] = first;
  if (e == experts - 1) offsets[experts] = first + sum;
  for (int b = 0; b < blocks; ++b) {
    int& count = counts[static_cast<int64_t>(b) * experts + e];
    const int own = count;
    count = first;
    first += own;
  }
}

// Gives each slot its row: those of a block by warp, those of a warp by lane.
__global__ void __launch_bounds__(kSlots)
    order_slots_kernel(int* slots, int* rows, const int* firsts, LocalExperts local) {
  extern __shared__ int next[];  // [warps, experts]
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const unsigned lane = threadIdx.x % kWarp;
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kSlots + threadIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < kBlockWarps * local.experts; i += kSlots) {
    next[i] = 0;
  }
  __syncthreads();
  const int expert = local.of(slot);
  const unsigned alike = __match_any_sync(kFullMask, expert);
  const int before = __popc(alike & ((1u << lane) - 1));
  if (expert >= 0 && before == 0) next[warp * local.experts + expert] = __popc(alike);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < local.experts; e += kSlots) {
    int row = firsts[static_cast<int64_t>(blockIdx.x) * local.experts + e];
    for (int w = 0; w < kBlockWarps; ++w) {
      const int count = next[w * local.experts + e];
      next[w * local.experts + e] = row;
      row += count;
    }
  }
  __syncthreads();
  if (slot >= local.slots) return;
  const int row = expert < 0 ? -1 : next[warp * local.experts + expert] + before;
  rows[slot] = row;
  if (row >= 0) slots[row] = static_cast<int>(slot);
}

// --- Rows ---

// A block for each row, in turn.
template <class F>
__device__ __forceinline__ void for_block_rows(int64_t rows, const F& f) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) f(row);
}

template <int N>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(AnyOutput y, AnyInput x, const int* slots, int k, int64_t rows, int64_t cols) {
  for_block_rows(rows, [&](int64_t row) {
    const int slot = slots[row];
    for (int64_t at = int64_t{threadIdx.x} * N; at < cols; at += int64_t{kThreads} * N) {
      float values[N] = {};
      if (slot >= 0) x.read(values, slot / k * cols + at);
      y.write(row * cols + at, values);
    }
  });
}

// A warp for each row, in turn; a row of x and y has `words` words of 16 bytes.
__global__ void __launch_bounds__(kThreads)
    gather_fp8_kernel(uint4* y, float* y_scales, const uint4* x, const float* x_scales,
                      const int* slots, int k, int64_t rows, int words) {
  constexpr int kWarps = kThreads / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < rows;
       row += int64_t{gridDim.x} * kWarps) {
    const int slot = slots[row];
    const int64_t token = slot < 0 ? 0 : slot / k;
#pragma unroll 4
    for (int i = lane; i < words; i += kWarp) {
      y[row * words + i] = slot < 0 ? uint4{} : x[token * words + i];
    }
    if (lane == 0) y_scales[row] = slot < 0 ? 0.0f : x_scales[token];
  }
}

// A warp for each row, in turn; a lane keeps the first packs of its row in registers.
template <class T, __nv_fp8_interpretation_t kType>
__global__ void __launch_bounds__(kThreads)
    gather_rounded_kernel(T* y, uint2* numbers, float* scales, const T* x, const int* slots, int k,
                          int64_t rows, int packs) {
  constexpr int kWarps = kThreads / kWarp;
  constexpr int kKept = 8;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp; row < rows;
       row += int64_t{gridDim.x} * kWarps) {
    const int slot = slots[row];
    const T* const from = x + (slot < 0 ? 0 : slot / k) * int64_t{packs} * kVector;
    const auto pack_at = [&](int i) {
      return slot < 0 || i >= packs ? RawPack<T>{} : load_pack(from + i * kVector);
    };
    RawPack<T> kept[kKept];
#pragma unroll
    for (int n = 0; n < kKept; ++n) kept[n] = pack_at(n * kWarp + lane);
    float most = 0;
#pragma unroll
    for (int n = 0; n < kKept; ++n) most = larger(most, largest_of(unpacked(kept[n])));
    for (int i = kKept * kWarp + lane; i < packs; i += kWarp) {
      most = larger(most, largest_of(unpacked(pack_at(i))));
    }
    const float scale = fp8_row_scale<kType>(warp_max(most));
    if (lane == 0) scales[row] = scale;
    const auto write = [&](int i, const RawPack<T>& pack) {
      if (i >= packs) return;
      store_pack(y + (row * packs + i) * kVector, pack);
      numbers[row * packs + i] = fp8_numbers<kType>(unpacked(pack), scale);
    };
#pragma unroll
    for (int n = 0; n < kKept; ++n) write(n * kWarp + lane, kept[n]);
    for (int i = kKept * kWarp + lane; i < packs; i += kWarp) write(i, pack_at(i));
  }
}

template <int N>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(AnyOutput y, AnyInput x, const int* rows, int k, int64_t tokens, int64_t cols) {
  for_block_rows(tokens, [&](int64_t token) {
    for (int64_t at = int64_t{threadIdx.x} * N; at < cols; at += int64_t{kThreads} * N) {
      float sums[N] = {};
      for (int j = 0; j < k; ++j) {
        const int row = rows[token * k + j];
        if (row < 0) continue;
        float values[N];
        x.read(values, row * cols + at);
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] += values[i];
      }
      y.write(token * cols + at, sums);
    }
  });
}

template <int N>
__global__ void __launch_bounds__(kThreads)
    weigh_kernel(AnyOutput y, AnyInput x, const float* weights, const int* slots, int64_t rows,
                 int64_t cols) {
  for_block_rows(rows, [&](int64_t row) {
    const int slot = slots[row];
    const float weight = slot < 0 ? 0.0f : weights[slot];
    for (int64_t at = int64_t{threadIdx.x} * N; at < cols; at += int64_t{kThreads} * N) {
      float values[N] = {};
      if (slot >= 0) x.read(values, row * cols + at);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] *= weight;
      y.write(row * cols + at, values);
    }
  });
}

template <int N>
__global__ void __launch_bounds__(kThreads)
    weigh_gradient_kernel(AnyOutput dx, float* dweights, AnyInput dy, AnyInput x,
                          const float* weights, const int* slots, int64_t rows, int64_t cols) {
  __shared__ float shared[kWarp];
  for_block_rows(rows, [&](int64_t row) {
    const int slot = slots[row];
    const float weight = slot < 0 ? 0.0f : weights[slot];
    float sum = 0;
    for (int64_t at = int64_t{threadIdx.x} * N; at < cols; at += int64_t{kThreads} * N) {
      float d[N] = {};
      if (slot >= 0) {
        float values[N];
        dy.read(d, row * cols + at);
        x.read(values, row * cols + at);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          sum += d[i] * values[i];
          d[i] *= weight;
        }
      }
      dx.write(row * cols + at, d);
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0 && slot >= 0) dweights[slot] += sum;
  });
}

// For rows in FP8.
void expect_whole_packs(int64_t cols, const void* x, const void* y, const char* who) {
  if (cols % 16 == 0 && is_aligned(x) && is_aligned(y)) return;
  throw ShapeError(std::string(who) + ": rows of " + std::to_string(cols) +
                   " elements must be multiples of 16 and start at multiples of 16 bytes");
}

// Calls f.template operator()<N>() with the elements that a thread may access at once.
template <class F, class... Views>
void with_vector(int64_t cols, const F& f, const Views&... views) {
  if (cols % kVector == 0 && (is_aligned(views.data) && ...)) {
    f.template operator()<kVector>();
  } else {
    f.template operator()<1>();
  }
}

}  // namespace

int64_t expert_order_workspace_bytes(int64_t slots, int64_t experts) {
  return (slots + kSlots - 1) / kSlots * experts * static_cast<int64_t>(sizeof(int32_t));
}

void order_by_expert(TensorView offsets, TensorView slots, TensorView rows, ConstView ids,
                     int64_t first_expert, TensorView workspace, Stream stream) {
  const int64_t experts = offsets.size(0) - 1;
  if (experts > kMaxLocalExperts) {
    throw Unsupported("a GPU has at most 512 experts of a layer; use more expert-parallel ranks");
  }
  const auto memory = native(stream);
  MG_CUDA(cudaMemsetAsync(slots.data, 0xff, static_cast<size_t>(slots.bytes()), memory));
  if (ids.numel() == 0) {
    MG_CUDA(cudaMemsetAsync(offsets.data, 0, static_cast<size_t>(offsets.bytes()), memory));
    return;
  }
  const LocalExperts local{ids.as<int32_t>(), ids.numel(), static_cast<int>(first_expert),
                           static_cast<int>(experts)};
  const auto blocks = static_cast<unsigned>((ids.numel() + kSlots - 1) / kSlots);
  auto* const counts = static_cast<int*>(workspace.data);
  const size_t bytes = static_cast<size_t>(experts) * sizeof(int);
  count_slots_kernel<<<blocks, kSlots, bytes, memory>>>(counts, local);
  MG_CUDA(cudaGetLastError());
  expert_offsets_kernel<<<1, kMaxLocalExperts, 0, memory>>>(
      offsets.as<int32_t>(), counts, static_cast<int>(blocks), static_cast<int>(experts));
  MG_CUDA(cudaGetLastError());
  if (kBlockWarps * bytes > 48 * 1024) {
    MG_CUDA(cudaFuncSetAttribute(order_slots_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kBlockWarps * bytes)));
  }
  order_slots_kernel<<<blocks, kSlots, kBlockWarps * bytes, memory>>>(
      slots.as<int32_t>(), rows.as<int32_t>(), counts, local);
  MG_CUDA(cudaGetLastError());
}

void gather_token_rows(TensorView y, ConstView x, ConstView slots, int64_t k, Stream stream) {
  if (y.numel() == 0) return;
  with_vector(
      y.size(1),
      [&]<int N>() {
        gather_kernel<N><<<blocks_for(y.size(0), 1), kThreads, 0, native(stream)>>>(
            any_output(y, "gather_token_rows"), any_input(x, "gather_token_rows"),
            slots.as<int32_t>(), static_cast<int>(k), y.size(0), y.size(1));
      },
      y, x);
  MG_CUDA(cudaGetLastError());
}

void gather_rounded_rows(TensorView y, Fp8RowsView y8, ConstView x, ConstView slots, int64_t k,
                         Stream stream) {
  if (y.numel() == 0) return;
  expect_whole_packs(y.size(1), x.data, y.data, "gather_rounded_rows");
  const bool is_e5m2 = y8.numbers.dtype == DType::kFloat8E5M2;
  dispatch_floating(x.dtype, "gather_rounded_rows", [&]<class T>() {
    const auto kernel =
        is_e5m2 ? gather_rounded_kernel<T, __NV_E5M2> : gather_rounded_kernel<T, __NV_E4M3>;
    kernel<<<blocks_for(y.size(0), kThreads / kWarp), kThreads, 0, native(stream)>>>(
        y.as<T>(), static_cast<uint2*>(y8.numbers.data), y8.scales.as<float>(), x.as<T>(),
        slots.as<int32_t>(), static_cast<int>(k), y.size(0), static_cast<int>(y.size(1) / kVector));
  });
  MG_CUDA(cudaGetLastError());
}

void gather_fp8_rows(TensorView y, TensorView y_scales, ConstView x, ConstView x_scales,
                     ConstView slots, int64_t k, Stream stream) {
  if (y.numel() == 0) return;
  expect_whole_packs(y.size(1), x.data, y.data, "gather_fp8_rows");
  gather_fp8_kernel<<<blocks_for(y.size(0), kThreads / kWarp), kThreads, 0, native(stream)>>>(
      static_cast<uint4*>(y.data), y_scales.as<float>(), static_cast<const uint4*>(x.data),
      x_scales.as<float>(), slots.as<int32_t>(), static_cast<int>(k), y.size(0),
      static_cast<int>(y.size(1) / 16));
  MG_CUDA(cudaGetLastError());
}

void combine_token_rows(TensorView y, ConstView x, ConstView rows, Stream stream) {
  if (y.numel() == 0) return;
  with_vector(
      y.size(1),
      [&]<int N>() {
        combine_kernel<N><<<blocks_for(y.size(0), 1), kThreads, 0, native(stream)>>>(
            any_output(y, "combine_token_rows"), any_input(x, "combine_token_rows"),
            rows.as<int32_t>(), static_cast<int>(rows.size(1)), y.size(0), y.size(1));
      },
      y, x);
  MG_CUDA(cudaGetLastError());
}

void weigh_rows_forward(TensorView y, ConstView x, ConstView weights, ConstView slots,
                        Stream stream) {
  if (y.numel() == 0) return;
  with_vector(
      y.size(1),
      [&]<int N>() {
        weigh_kernel<N><<<blocks_for(y.size(0), 1), kThreads, 0, native(stream)>>>(
            any_output(y, "weigh_rows"), any_input(x, "weigh_rows"), weights.as<float>(),
            slots.as<int32_t>(), y.size(0), y.size(1));
      },
      y, x);
  MG_CUDA(cudaGetLastError());
}

void weigh_rows_backward(TensorView dx, TensorView dweights, ConstView dy, ConstView x,
                         ConstView weights, ConstView slots, Stream stream) {
  if (dx.numel() == 0) return;
  with_vector(
      dx.size(1),
      [&]<int N>() {
        weigh_gradient_kernel<N><<<blocks_for(dx.size(0), 1), kThreads, 0, native(stream)>>>(
            any_output(dx, "weigh_rows"), dweights.as<float>(), any_input(dy, "weigh_rows"),
            any_input(x, "weigh_rows"), weights.as<float>(), slots.as<int32_t>(), dx.size(0),
            dx.size(1));
      },
      dx, dy, x);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
