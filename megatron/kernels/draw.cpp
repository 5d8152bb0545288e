#include "megatron/kernels/draw.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void draw_tokens(TensorView tokens, ConstView logits, ConstView draws, TensorView workspace,
                 Stream stream) {
  const int64_t rows = logits.size(0);
  expect_shape(tokens.shape, {rows}, "draw_tokens: tokens");
  expect_dtype(tokens.dtype, DType::kInt32, "draw_tokens: tokens");
  expect_shape(logits.shape, {rows, logits.size(1)}, "draw_tokens: logits");
  expect_shape(draws.shape, {rows * static_cast<int64_t>(sizeof(Draw))}, "draw_tokens: draws");
  if (stream.is_cpu()) return cpu::draw_tokens(tokens, logits, draws, stream);
  if constexpr (kBuiltWithCuda) {
    return cuda::draw_tokens(tokens, logits, draws, workspace, stream);
  }
  throw_built_without_cuda("draw_tokens");
}

int64_t draw_workspace_bytes(int64_t rows, int64_t v, Stream stream) {
  return stream.is_cpu() ? 0 : rows * v * static_cast<int64_t>(sizeof(uint64_t));
}

}  // namespace megatron::kernels
