#include "megatron/kernels/cuda/attention_mask.h"

#include "megatron/device/philox.h"
#include "megatron/kernels/cuda/pack.cuh"

namespace megatron::kernels::cuda {
namespace {

struct Mask {
  DropoutKey key;
  uint32_t threshold;
  uint32_t one;               // in 16 bits
  int64_t first_row, length;  // rows of the first query of a head: first_row + head * length
  int64_t heads, sq, sk;
  bool is_causal;
};

// A thread for eight keys of a query. The same words as in the other kernels (device/random.h).
__global__ void __launch_bounds__(kThreads) mask_kernel(uint4* mask, Mask m) {
  const int64_t packs = m.sk / kVector;
  const auto pack = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  const int64_t row = blockIdx.x;  // of [b, heads, sq]
  const int64_t query = row % m.sq;
  const int64_t head = row / m.sq % m.heads;
  uint32_t halves[kVector / 2] = {};
  if (!m.is_causal || pack * kVector <= query) {
    const auto sample = static_cast<uint64_t>(m.key.sample(row / (m.sq * m.heads)));
    const auto i = static_cast<uint32_t>(m.first_row + head * m.length + query);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto words =
          philox({static_cast<uint32_t>(2 * pack + half), i, static_cast<uint32_t>(sample),
                  static_cast<uint32_t>(sample >> 32)},
                 m.key.key);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t low = words[static_cast<size_t>(2 * k)] < m.threshold ? m.one : 0;
        const uint32_t high = words[static_cast<size_t>(2 * k + 1)] < m.threshold ? m.one : 0;
        halves[2 * half + k] = low | high << 16;
      }
    }
  }
  mask[row * packs + pack] = make_uint4(halves[0], halves[1], halves[2], halves[3]);
}

}  // namespace

void write_dropout_mask(TensorView mask, const AttentionSettings& settings, Stream stream) {
  if (mask.numel() == 0) return;
  constexpr uint32_t kOneFp16 = 0x3C00;
  constexpr uint32_t kOneBf16 = 0x3F80;
  const Mask m{.key = settings.dropout,
               .threshold = settings.dropout.keep_threshold(),
               .one = mask.dtype == DType::kFloat16 ? kOneFp16 : kOneBf16,
               .first_row = dropout_row(settings, 0, mask.size(2)),
               .length = settings.dropout_length > 0 ? settings.dropout_length : mask.size(2),
               .heads = mask.size(1),
               .sq = mask.size(2),
               .sk = mask.size(3),
               .is_causal = settings.is_causal};
  const int64_t packs = m.sk / kVector;
  const auto threads =
      static_cast<unsigned>(std::min<int64_t>(kThreads, divided_up(packs, 32) * 32));
  const dim3 grid(static_cast<unsigned>(mask.numel() / m.sk),
                  static_cast<unsigned>(divided_up(packs, threads)));
  mask_kernel<<<grid, threads, 0, native(stream)>>>(static_cast<uint4*>(mask.data), m);
  MG_CUDA(cudaGetLastError());
}

}  // namespace megatron::kernels::cuda
