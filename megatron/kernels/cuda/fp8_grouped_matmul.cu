#include "megatron/kernels/fp8_grouped_matmul.h"

#include "megatron/core/error.h"
#include "megatron/kernels/attention.h"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/fp8_grouped_wgmma.cuh"
#include "megatron/kernels/cuda/tensor_map.h"

namespace megatron::kernels::cuda {
namespace {

constexpr const char* kWho = "fp8_grouped_matmul";

// A map whose tiles have 128 elements, copied in pairs.
CUtensorMap map_of_pairs(const ConstView& matrix, int64_t rows, int box_rows) {
  const int64_t pairs = matrix.shape[matrix.shape.rank() - 1] / 2;
  return tensor_map(heads_of(ConstView{matrix.data, {rows, 1, pairs}, DType::kBFloat16}, 1),
                    box_rows);
}

void expect_whole_rows(const ConstView& x) {
  if (x.shape[x.shape.rank() - 1] % 16 == 0 && is_aligned(x.data)) return;
  throw ShapeError(std::string(kWho) + ": rows of " + x.shape.str() +
                   " must be multiples of 16 elements and start at multiples of 16 bytes");
}

template <class Left, class Out>
void launch(const TensorView& y, const ConstView& x, const ConstView& w,
            const GroupedScales& scales, const ConstView& offsets, Stream stream) {
  const auto kernel = fp8_grouped_kernel<Left, Out>;
  const auto* const code = reinterpret_cast<const void*>(kernel);
  if (!has_warpgroups(code, stream.device)) {
    throw Unsupported(
        "products of experts in FP8 need a GPU of compute capability 9.0; remove "
        "--fp8-format");
  }
  const GroupedMaps maps{map_of_pairs(x, x.size(0), GroupedShape::kRows),
                         map_of_pairs(w, w.size(0) * w.size(1), GroupedShape::kColumns)};
  const GroupedTiles<GroupedProduct::kForward> tiles{
      offsets.as<int32_t>(), static_cast<int>(w.size(0)), static_cast<int>(y.size(0)),
      static_cast<int>(y.size(1)), static_cast<int>(x.size(1) / 2)};
  allow_shared_bytes(code, GroupedShape::kBytes, stream.device);
  kernel<<<static_cast<unsigned>(multiprocessors(stream.device)), GroupedShape::kBlock,
           GroupedShape::kBytes, native(stream)>>>(maps, static_cast<Out*>(y.data), scales, tiles);
  MG_CUDA(cudaGetLastError());
}

}  // namespace

void fp8_grouped_matmul(TensorView y, ConstView x, ConstView x_scales, ConstView w,
                        ConstView w_scales, ConstView offsets, Stream stream) {
  if (y.dtype == DType::kFloat32) {
    throw Unsupported("products of experts in FP8 on a GPU need a model in 16 bits; add --bf16");
  }
  expect_whole_rows(x);
  expect_whole_rows(w);
  expect_whole_rows(y);
  const GroupedScales scales{x_scales.as<float>(), w_scales.as<float>()};
  dispatch_float8(x.dtype, kWho, [&]<class Left>() {
    y.dtype == DType::kBFloat16 ? launch<Left, BFloat16>(y, x, w, scales, offsets, stream)
                                : launch<Left, Float16>(y, x, w, scales, offsets, stream);
  });
}

}  // namespace megatron::kernels::cuda
