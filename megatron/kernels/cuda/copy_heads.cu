#include "megatron/kernels/copy_heads.h"

#include "megatron/kernels/cuda/heads.cuh"
#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {
namespace {

// Copies units of sizeof(Unit) bytes; a head has `per_head` units, and the layouts' strides are in
// units.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    copy_heads_kernel(Unit* dst, const Unit* src, HeadsLayout to, HeadsLayout from, int64_t s,
                      int64_t per_head) {
  for_each_unit(to, s, per_head, [&](int64_t i, int64_t batch, int64_t head, int64_t unit) {
    dst[to.offset(i, batch, head) + unit] = src[from.offset(i, batch, head) + unit];
  });
}

// The layout with strides in units of `elements`.
HeadsLayout in_units(HeadsLayout layout, int64_t elements) {
  layout.stride_s /= elements;
  layout.stride_b /= elements;
  layout.stride_group /= elements;
  layout.stride_head /= elements;
  return layout;
}

template <class Unit>
void copy_units(const HeadsView& dst, const ConstHeadsView& src, Stream stream) {
  const int64_t elements = static_cast<int64_t>(sizeof(Unit)) / size_of(dst.dtype);
  const int64_t per_head = dst.d / elements;
  const TokenGrid grid = grid_of_tokens(dst.s * dst.b, dst.heads * per_head);
  copy_heads_kernel<<<grid.blocks, grid.threads, 0, native(stream)>>>(
      static_cast<Unit*>(dst.data), static_cast<const Unit*>(src.data),
      in_units(layout_of(dst), elements), in_units(layout_of(src), elements), dst.s, per_head);
  MG_CUDA(cudaGetLastError());
}

}  // namespace

void copy_heads(const HeadsView& dst, const ConstHeadsView& src, Stream stream) {
  if (dst.s * dst.b * dst.heads * dst.d == 0) return;
  const int64_t width = size_of(dst.dtype);
  constexpr int64_t kUnit = sizeof(uint4);
  if (dst.d * width % kUnit == 0 && heads_are_aligned(dst, kUnit) &&
      heads_are_aligned(src, kUnit)) {
    copy_units<uint4>(dst, src, stream);
  } else if (width == 2) {
    copy_units<uint16_t>(dst, src, stream);
  } else {
    expect_dtype(dst.dtype, DType::kFloat32, "copy_heads: dst");
    copy_units<uint32_t>(dst, src, stream);
  }
}

}  // namespace megatron::kernels::cuda
