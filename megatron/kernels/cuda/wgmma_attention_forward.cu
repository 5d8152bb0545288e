#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/tensor_map.h"
#include "megatron/kernels/cuda/wgmma_attention.h"
#include "megatron/kernels/cuda/wgmma_forward_kernel.cuh"

namespace megatron::kernels::cuda {
namespace {

template <class T, class Shape, bool kHasDropout>
void launch(const HeadsView& out, const TensorView& lse, const ConstHeadsView& q,
            const ConstHeadsView& k, const ConstHeadsView& v, const AttentionSettings& settings,
            Stream stream) {
  const int64_t rows = q.s + (kHasDropout ? settings.query_offset % kDropoutQueries : 0);
  const int64_t blocks = (rows + Shape::kQueries - 1) / Shape::kQueries * q.b * q.heads;
  const auto kernel = wgmma_forward_kernel<T, Shape, kHasDropout>;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), Shape::kBytes, stream.device);
  const ForwardMaps maps{tensor_map(q, Shape::kQueries), tensor_map(k, Shape::kKeys),
                         tensor_map(v, Shape::kKeys)};
  const auto size = [](const ConstHeadsView& x) { return static_cast<int>(x.heads_per_group); };
  kernel<<<static_cast<unsigned>(blocks), Shape::kBlock, Shape::kBytes, native(stream)>>>(
      maps, ForwardGroups{size(q), size(k), size(v)}, heads_on_device<T>(out),
      lse.is_null() ? nullptr : lse.as<float>(), problem_of(q, k, settings));
  MG_CUDA(cudaGetLastError());
}

}  // namespace

bool has_warpgroup_attention(Device device) {
  // One kernel's code stands for all: they are compiled for the same GPUs.
  const auto kernel = wgmma_forward_kernel<BFloat16, WgmmaForwardShape<64>, false>;
  return has_warpgroups(reinterpret_cast<const void*>(kernel), device);
}

void wgmma_attention_forward(const HeadsView& out, const TensorView& lse, const ConstHeadsView& q,
                             const ConstHeadsView& k, const ConstHeadsView& v,
                             const AttentionSettings& settings, Stream stream) {
  const auto with_shape = [&]<class T, class Shape>() {
    settings.dropout.is_active() ? launch<T, Shape, true>(out, lse, q, k, v, settings, stream)
                                 : launch<T, Shape, false>(out, lse, q, k, v, settings, stream);
  };
  const auto with_type = [&]<class T>() {
    q.d == 64 ? with_shape.template operator()<T, WgmmaForwardShape<64>>()
              : with_shape.template operator()<T, WgmmaForwardShape<128>>();
  };
  q.dtype == DType::kBFloat16 ? with_type.template operator()<BFloat16>()
                              : with_type.template operator()<Float16>();
}

}  // namespace megatron::kernels::cuda
