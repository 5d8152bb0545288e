#include "megatron/kernels/cuda/head_norm.cuh"

#include "megatron/core/error.h"
#include "megatron/kernels/cuda/capability.h"

namespace megatron::kernels::cuda {
namespace {

template <class T, int kLanes>
auto kernel_of_pairs(RotaryPairs pairs) {
  return pairs == RotaryPairs::kHalves ? norm_heads_kernel<T, kLanes, RotaryPairs::kHalves>
                                       : norm_heads_kernel<T, kLanes, RotaryPairs::kInterleaved>;
}
template <class T>
auto kernel_of_head(int64_t d, RotaryPairs pairs) {
  switch (d / kVector) {
    case 1:
      return kernel_of_pairs<T, 1>(pairs);
    case 2:
      return kernel_of_pairs<T, 2>(pairs);
    case 4:
      return kernel_of_pairs<T, 4>(pairs);
    case 8:
      return kernel_of_pairs<T, 8>(pairs);
    case 16:
      return kernel_of_pairs<T, 16>(pairs);
    default:
      return kernel_of_pairs<T, 32>(pairs);
  }
}

}  // namespace

bool has_head_norms(ConstView qkv, int64_t heads, int64_t groups, const HeadNorms& norms,
                    const HeadRotation& rotation, Stream) {
  const int64_t d = qkv.size(2) / (heads + 2 * groups);
  const int64_t half = rotation.table.data == nullptr ? 0 : rotation.table.size(1) / 2;
  const bool has_lanes = d % kVector == 0 && d <= int64_t{kWarp} * kVector && (d & (d - 1)) == 0;
  const bool has_pairs =
      half % (rotation.pairs == RotaryPairs::kHalves ? kVector : kVector / 2) == 0;
  return has_lanes && has_pairs && is_aligned(qkv.data) && is_aligned(norms.q_weight.data) &&
         is_aligned(norms.k_weight.data) && is_aligned(norms.q_bias.data) &&
         is_aligned(norms.k_bias.data);
}

void norm_heads_inplace(TensorView qkv, int64_t heads, int64_t groups, const HeadNorms& norms,
                        const HeadRotation& rotation, Stream stream) {
  expect_floating(qkv.dtype, "norm_heads_inplace");
  const NormedHeads p = normed_heads(qkv, heads, groups, norms, rotation);
  const int64_t d = qkv.size(2) / (heads + 2 * groups);
  const int64_t per_block = kThreads / (d / kVector);
  const int64_t blocks = (p.s * p.b * (heads + groups) + per_block - 1) / per_block;
  if (blocks == 0) return;
  if (blocks > INT32_MAX) throw ShapeError("norm_heads_inplace: too many tokens for one launch");
  const auto kernel = qkv.dtype == DType::kFloat32    ? kernel_of_head<float>(d, rotation.pairs)
                      : qkv.dtype == DType::kBFloat16 ? kernel_of_head<BFloat16>(d, rotation.pairs)
                                                      : kernel_of_head<Float16>(d, rotation.pairs);
  launch_overlapped(
      kernel,
      {.grid = dim3(static_cast<unsigned>(blocks)),
       .block = dim3(kThreads),
       .overlaps = has_clusters(reinterpret_cast<const void*>(kernel), stream.device)},
      stream, p);
}

}  // namespace megatron::kernels::cuda
