#include "megatron/kernels/copy_heads.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

void copy_heads(const HeadsView& dst, const ConstHeadsView& src, Stream stream) {
  expect_shape({src.s, src.b, src.heads, src.d}, {dst.s, dst.b, dst.heads, dst.d},
               "copy_heads: src");
  expect_dtype(src.dtype, dst.dtype, "copy_heads: src");
  return dispatch<cpu::copy_heads, cuda::copy_heads>("copy_heads", dst, src, stream);
}

}  // namespace megatron::kernels
