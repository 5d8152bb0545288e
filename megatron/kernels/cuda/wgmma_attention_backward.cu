#include <algorithm>

#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/tensor_map.h"
#include "megatron/kernels/cuda/wgmma_attention.h"
#include "megatron/kernels/cuda/wgmma_backward_kernel.cuh"

namespace megatron::kernels::cuda {
namespace {

template <class T, class Shape, bool kHasDropout>
void launch(const HeadsView& dq, const HeadsView& dk, const HeadsView& dv,
            const ConstHeadsView& dout, const ConstHeadsView& q, const ConstHeadsView& k,
            const ConstHeadsView& v, const BackwardScratch& scratch, const Problem& problem,
            Stream stream) {
  const int work_tiles = BackwardWorkTiles(problem, Shape::kKeys).count;
  const int blocks = std::min(work_tiles, multiprocessors(stream.device));
  const auto kernel = wgmma_backward_kernel<T, Shape, kHasDropout>;
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), Shape::kBytes, stream.device);
  const BackwardMaps maps{tensor_map(q, kTileQueries), tensor_map(k, Shape::kKeys),
                          tensor_map(v, Shape::kKeys), tensor_map(dout, kTileQueries)};
  const auto size = [](const ConstHeadsView& x) { return static_cast<int>(x.heads_per_group); };
  kernel<<<static_cast<unsigned>(blocks), Shape::kBlock, Shape::kBytes, native(stream)>>>(
      maps, BackwardGroups{size(q), size(k), size(v), size(dout)}, heads_on_device<T>(dq),
      heads_on_device<T>(dk), heads_on_device<T>(dv), scratch, problem);
  MG_CUDA(cudaGetLastError());
}

}  // namespace

void wgmma_attention_backward(const HeadsView& dq, const HeadsView& dk, const HeadsView& dv,
                              const ConstHeadsView& dout, const ConstHeadsView& q,
                              const ConstHeadsView& k, const ConstHeadsView& v,
                              const BackwardScratch& scratch, const Problem& problem,
                              Stream stream) {
  const auto with_shape = [&]<class T, class Shape>() {
    problem.has_dropout
        ? launch<T, Shape, true>(dq, dk, dv, dout, q, k, v, scratch, problem, stream)
        : launch<T, Shape, false>(dq, dk, dv, dout, q, k, v, scratch, problem, stream);
  };
  const auto with_type = [&]<class T>() {
    q.d == 64 ? with_shape.template operator()<T, WgmmaBackwardShape<64>>()
              : with_shape.template operator()<T, WgmmaBackwardShape<128>>();
  };
  q.dtype == DType::kBFloat16 ? with_type.template operator()<BFloat16>()
                              : with_type.template operator()<Float16>();
}

}  // namespace megatron::kernels::cuda
