#include "megatron/kernels/hash.h"

#include <algorithm>
#include <atomic>

#include "megatron/core/parallel_for.h"
#include "megatron/kernels/hash_term.h"

namespace megatron::kernels::cpu {
namespace {

constexpr int64_t kHashGrain = int64_t{64} << 10;  // elements that pay for a thread

// Hashes elements [begin, end) of a row-major part with `cols` columns.
template <class Bits>
uint64_t hash_of_range(const Bits* x, int64_t begin, int64_t end, int64_t cols, int64_t first,
                       int64_t stride) {
  uint64_t hash = 0;
  while (begin < end) {
    const int64_t row = begin / cols;
    const int64_t last = std::min(end, (row + 1) * cols);
    const auto index = static_cast<uint64_t>(first + row * stride + (begin - row * cols));
    const auto count = static_cast<uint64_t>(last - begin);
    const Bits* const from = x + begin;
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (uint64_t i = 0; i < count; ++i) sum += hash_term(index + i, from[i]);
    hash += sum;
    begin = last;
  }
  return hash;
}

template <class Bits>
uint64_t hash_as(ConstView x, int64_t first, int64_t stride) {
  std::atomic<uint64_t> hash = 0;
  parallel_for(x.numel(), kHashGrain, [&](int64_t begin, int64_t end) {
    hash += hash_of_range(static_cast<const Bits*>(x.data), begin, end, x.size(1), first, stride);
  });
  return hash;
}

uint64_t hash_of(ConstView x, int64_t first, int64_t stride) {
  switch (size_of(x.dtype)) {
    case 1:
      return hash_as<uint8_t>(x, first, stride);
    case 2:
      return hash_as<uint16_t>(x, first, stride);
    case 4:
      return hash_as<uint32_t>(x, first, stride);
    default:
      return hash_as<uint64_t>(x, first, stride);
  }
}

}  // namespace

void add_hash(TensorView hash, ConstView x, int64_t first, int64_t stride, Stream) {
  auto* const to = reinterpret_cast<uint64_t*>(hash.as<int64_t>());
  *to += hash_of(x, first, stride);
}

}  // namespace megatron::kernels::cpu
