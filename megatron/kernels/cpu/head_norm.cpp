#include "megatron/kernels/head_norm.h"

#include <vector>

#include "megatron/kernels/norm.h"

namespace megatron::kernels::cpu {

void norm_heads_inplace(TensorView qkv, int64_t heads, int64_t groups, const HeadNorms& norms,
                        const HeadRotation& rotation, Stream stream) {
  const int64_t d = qkv.size(2) / (heads + 2 * groups), per_group = heads / groups;
  std::vector<float> mean(static_cast<size_t>(per_group)), rstd(mean.size());
  const auto normalize = [&](std::byte* first, int64_t rows, ConstView weight, ConstView bias) {
    const TensorView x{first, {rows, d}, qkv.dtype};
    const TensorView means{mean.data(), {rows}, DType::kFloat32};
    const TensorView rstds{rstd.data(), {rows}, DType::kFloat32};
    if (bias.data == nullptr) {
      cpu::rms_norm_forward(x, rstds, x, weight, norms.weight_offset, norms.epsilon, stream);
    } else {
      cpu::layer_norm_forward(x, means, rstds, x, weight, bias, norms.weight_offset, norms.epsilon,
                              stream);
    }
  };
  auto* const bytes = static_cast<std::byte*>(qkv.data);
  const int64_t head_bytes = d * size_of(qkv.dtype);
  for (int64_t i = 0; i < qkv.size(0) * qkv.size(1) * groups; ++i) {
    std::byte* const group = bytes + i * (per_group + 2) * head_bytes;
    normalize(group, per_group, norms.q_weight, norms.q_bias);
    normalize(group + per_group * head_bytes, 1, norms.k_weight, norms.k_bias);
  }
  if (rotation.table.data == nullptr) return;
  // The key of a group follows its queries: together they are the heads of one view.
  HeadsView rotated = split_qkv(qkv, heads, groups).q;
  rotated.heads = heads + groups;
  rotated.heads_per_group = per_group + 1;
  cpu::rotary_inplace(rotated, rotation.table, rotation.position_ids, rotation.offset,
                      rotation.pairs, false, stream);
}

}  // namespace megatron::kernels::cpu
