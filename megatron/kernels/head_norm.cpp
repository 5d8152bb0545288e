#include "megatron/kernels/head_norm.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {

bool has_head_norms(ConstView qkv, int64_t heads, int64_t groups, const HeadNorms& norms,
                    const HeadRotation& rotation, Stream stream) {
  if (norms.q_weight.dtype != qkv.dtype) return false;
  if (stream.is_cpu() || stream.is_dry()) return true;
  if constexpr (kBuiltWithCuda) {
    return cuda::has_head_norms(qkv, heads, groups, norms, rotation, stream);
  }
  return false;
}

void norm_heads_inplace(TensorView qkv, int64_t heads, int64_t groups, const HeadNorms& norms,
                        const HeadRotation& rotation, Stream stream) {
  const int64_t d = qkv.size(2) / (heads + 2 * groups);
  expect_shape(norms.q_weight.shape, {d}, "norm_heads_inplace: q_weight");
  expect_shape(norms.k_weight.shape, {d}, "norm_heads_inplace: k_weight");
  expect_dtype(norms.q_weight.dtype, qkv.dtype, "norm_heads_inplace: q_weight");
  dispatch<cpu::norm_heads_inplace, cuda::norm_heads_inplace>("norm_heads_inplace", qkv, heads,
                                                              groups, norms, rotation, stream);
}

}  // namespace megatron::kernels
