#include "megatron/kernels/decode_text.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

bool has_decode_text(const DecodeTextShape& shape, Device device) {
  if constexpr (kBuiltWithCuda) return !device.is_cpu() && cuda::has_decode_text(shape, device);
  return false;
}

int64_t decode_text_workspace_bytes(const DecodeTextShape& shape) {
  if constexpr (kBuiltWithCuda) return cuda::decode_text_workspace_bytes(shape);
  throw_built_without_cuda("decode_text");
}

void decode_text(TensorView logits, ConstView x, const DecodeText& text, ConstView pages,
                 ConstView length, int64_t max_length, TensorView workspace, Stream stream) {
  expect_shape(logits.shape, {text.shape.vocabulary}, "decode_text: logits");
  expect_shape(x.shape, {text.shape.hidden}, "decode_text: x");
  expect_dtype(logits.dtype, text.shape.dtype, "decode_text: logits");
  expect_dtype(x.dtype, text.shape.dtype, "decode_text: x");
  expect_dtype(pages.dtype, DType::kInt32, "decode_text: pages");
  expect_dtype(length.dtype, DType::kInt32, "decode_text: length");
  if constexpr (kBuiltWithCuda) {
    return cuda::decode_text(logits, x, text, pages, length, max_length, workspace, stream);
  }
  throw_built_without_cuda("decode_text");
}

}  // namespace megatron::kernels
