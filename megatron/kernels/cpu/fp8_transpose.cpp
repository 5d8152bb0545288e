#include "megatron/kernels/fp8_transpose.h"

#include <cstdint>

#include "megatron/core/parallel_for.h"

namespace megatron::kernels::cpu {

void fp8_transpose(TensorView y, ConstView x, Stream) {
  const int64_t rows = x.size(0);
  const int64_t cols = x.size(1);
  const auto* const from = static_cast<const uint8_t*>(x.data);
  auto* const to = static_cast<uint8_t*>(y.data);
  parallel_for(cols, 16384 / (rows + 1) + 1, [=](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      for (int64_t i = 0; i < rows; ++i) to[j * rows + i] = from[i * cols + j];
    }
  });
}

}  // namespace megatron::kernels::cpu
