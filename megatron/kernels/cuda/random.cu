#include "megatron/kernels/random.h"

#include "megatron/device/philox.h"
#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {
namespace {

constexpr int kWords = 4;  // words of one counter: adjacent columns

struct Normal {
  float std;

  __device__ void operator()(float (&values)[kWords], const std::array<uint32_t, 4>& words) const {
#pragma unroll
    for (int pair = 0; pair < kWords; pair += 2) {
      const float radius = std * sqrtf(-2.0f * logf(unit_interval(words[pair])));
      sincospif(2.0f * unit_interval(words[pair + 1]), &values[pair + 1], &values[pair]);
      values[pair] *= radius;
      values[pair + 1] *= radius;
    }
  }
};

struct Uniform {
  float bound;

  __device__ void operator()(float (&values)[kWords], const std::array<uint32_t, 4>& words) const {
#pragma unroll
    for (int j = 0; j < kWords; ++j) values[j] = bound * (2.0f * unit_interval(words[j]) - 1.0f);
  }
};

// One thread per counter; a row's counters start at first.column / 4. `whole`: rows are whole
// counters and y is aligned, so four elements are stored at once.
template <class F>
__global__ void __launch_bounds__(kThreads)
    fill_by_words_kernel(AnyOutput y, int64_t rows, int64_t cols, MatrixPlace first, uint64_t key,
                         bool whole, F values_of) {
  const int64_t skipped = first.column % kWords;
  const int64_t per_row = (skipped + cols + kWords - 1) / kWords;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t n = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; n < rows * per_row;
       n += step) {
    const int64_t row = n / per_row;
    const int64_t counter = first.column / kWords + n % per_row;
    const int64_t matrix_row = first.row + row;
    const auto words = philox({static_cast<uint32_t>(counter), static_cast<uint32_t>(matrix_row),
                               static_cast<uint32_t>(matrix_row >> 32), 0},
                              key);
    float values[kWords];
    values_of(values, words);
    const int64_t column = n % per_row * kWords - skipped;
    const int64_t at = row * cols + column;
    if (whole) {
      y.write(at, values);
    } else {
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        const float value[1] = {values[j]};
        if (column + j >= 0 && column + j < cols) y.write(at + j, value);
      }
    }
  }
}

template <class F>
void fill_by_words(TensorView y, const char* who, MatrixPlace first, uint64_t key, F values_of,
                   Stream stream) {
  const int64_t rows = y.size(0);
  const int64_t cols = y.size(1);
  const AnyOutput out = any_output(y, who);
  if (y.numel() == 0) return;
  const int64_t skipped = first.column % kWords;
  const bool whole = is_aligned(y.data) && skipped == 0 && cols % kWords == 0;
  const int64_t counters = rows * ((skipped + cols + kWords - 1) / kWords);
  fill_by_words_kernel<<<blocks_for(counters, kThreads), kThreads, 0, native(stream)>>>(
      out, rows, cols, first, key, whole, values_of);
  MG_CUDA(cudaGetLastError());
}

}  // namespace

void fill_normal(TensorView y, MatrixPlace first, uint64_t key, float std, Stream stream) {
  fill_by_words(y, "fill_normal", first, key, Normal{std}, stream);
}

void fill_uniform(TensorView y, MatrixPlace first, uint64_t key, float bound, Stream stream) {
  fill_by_words(y, "fill_uniform", first, key, Uniform{bound}, stream);
}

}  // namespace megatron::kernels::cuda
