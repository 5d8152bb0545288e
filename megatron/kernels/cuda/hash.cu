#include "megatron/kernels/cuda/launch.cuh"
#include "megatron/kernels/hash.h"
#include "megatron/kernels/hash_term.h"

namespace megatron::kernels::cuda {
namespace {

// Sums of integers do not depend on their order, so blocks add to one number.
using Word = unsigned long long;

// Row and column of a thread's next element.
struct HashPosition {
  int64_t row;
  int64_t col;
};

// Grid-stride loop over the elements. `ahead` is the grid stride in rows and columns, so each
// thread divides only once.
template <class Bits>
__global__ void __launch_bounds__(kThreads)
    hash_kernel(Word* hash, const Bits* x, int64_t numel, int64_t cols, int64_t first,
                int64_t stride, HashPosition ahead) {
  __shared__ Word shared[kWarp];
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  HashPosition position{begin / cols, begin % cols};
  Word sum = 0;
  for (int64_t at = begin; at < numel; at += step) {
    sum += hash_term(static_cast<uint64_t>(first + position.row * stride + position.col), x[at]);
    position.row += ahead.row;
    position.col += ahead.col;
    if (position.col >= cols) {
      position.col -= cols;
      ++position.row;
    }
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) atomicAdd(hash, sum);
}

template <class Bits>
void launch_hash(TensorView hash, ConstView x, int64_t first, int64_t stride, Stream stream) {
  const int64_t cols = x.size(1);
  constexpr int64_t kPerThread = 16;  // amortizes the block reduction
  const unsigned blocks = blocks_for(x.numel(), kThreads * kPerThread);
  const int64_t step = static_cast<int64_t>(blocks) * kThreads;
  hash_kernel<<<blocks, kThreads, 0, native(stream)>>>(
      reinterpret_cast<Word*>(hash.as<int64_t>()), static_cast<const Bits*>(x.data), x.numel(),
      cols, first, stride, HashPosition{step / cols, step % cols});
  MG_CUDA(cudaGetLastError());
}

}  // namespace

void add_hash(TensorView hash, ConstView x, int64_t first, int64_t stride, Stream stream) {
  if (x.numel() == 0) return;
  switch (size_of(x.dtype)) {
    case 1:
      return launch_hash<uint8_t>(hash, x, first, stride, stream);
    case 2:
      return launch_hash<uint16_t>(hash, x, first, stride, stream);
    case 4:
      return launch_hash<uint32_t>(hash, x, first, stride, stream);
    default:
      return launch_hash<uint64_t>(hash, x, first, stride, stream);
  }
}

}  // namespace megatron::kernels::cuda
