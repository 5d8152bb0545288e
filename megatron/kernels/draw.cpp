#include "megatron/kernels/draw.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void draw_tokens(TensorView tokens, TensorView probabilities, ConstView logits, ConstView draws,
                 const DrawTexts& texts, TensorView workspace, Stream stream) {
  const int64_t rows = logits.size(0);
  expect_shape(tokens.shape, {rows}, "draw_tokens: tokens");
  expect_dtype(tokens.dtype, DType::kInt32, "draw_tokens: tokens");
  if (probabilities.data != nullptr) {
    expect_shape(probabilities.shape,
                 {rows, kMaxLogProbabilities * static_cast<int64_t>(sizeof(TokenLogProbability))},
                 "draw_tokens: probabilities");
  }
  expect_shape(logits.shape, {rows, logits.size(1)}, "draw_tokens: logits");
  expect_shape(draws.shape, {rows * static_cast<int64_t>(sizeof(Draw))}, "draw_tokens: draws");
  if (texts.ids.data != nullptr) {
    expect_shape(texts.pages.shape, {rows, texts.pages.size(1)}, "draw_tokens: pages");
    expect_shape(texts.lengths.shape, {rows}, "draw_tokens: lengths");
    if (texts.last.data != nullptr) expect_shape(texts.last.shape, {rows}, "draw_tokens: last");
  }
  if (stream.is_cpu()) {
    return cpu::draw_tokens(tokens, probabilities, logits, draws, texts, stream);
  }
  if constexpr (kBuiltWithCuda) {
    return cuda::draw_tokens(tokens, probabilities, logits, draws, texts, workspace, stream);
  }
  throw_built_without_cuda("draw_tokens");
}

void put_ids(TensorView ids, ConstView tokens, ConstView slots, Stream stream) {
  expect_dtype(ids.dtype, DType::kInt32, "put_ids: ids");
  expect_dtype(tokens.dtype, DType::kInt32, "put_ids: tokens");
  expect_shape(slots.shape, tokens.shape, "put_ids: slots");
  return dispatch<cpu::put_ids, cuda::put_ids>("put_ids", ids, tokens, slots, stream);
}

int64_t draw_workspace_bytes(int64_t rows, int64_t v, Stream stream) {
  return stream.is_cpu() ? 0 : rows * v * static_cast<int64_t>(sizeof(uint64_t));
}

}  // namespace megatron::kernels
