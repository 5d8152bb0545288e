#include "megatron/kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>

#include "megatron/core/error.h"
#include "megatron/device/cuda/check.h"

namespace megatron::kernels::cuda {
namespace {

constexpr int kDimensions = 5;
constexpr uint32_t kColumns = 64;
constexpr uint64_t kMinStride = 16;  // bytes

// The driver's function, found once.
PFN_cuTensorMapEncodeTiled_v12000 encode() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    MG_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                             cudaEnableDefault, &result));
    if (found == nullptr) {
      throw DeviceError(
          "the driver has no cuTensorMapEncodeTiled; install one for CUDA 12 or later");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  return function;
}

}  // namespace

CUtensorMap tensor_map(const ConstHeadsView& x, int rows) {
  const auto extent = [](int64_t n) { return static_cast<uint64_t>(n); };
  const std::array<uint64_t, kDimensions> extents = {
      extent(x.d), extent(x.s), extent(x.heads_per_group), extent(x.heads / x.heads_per_group),
      extent(x.b)};
  // The stride of a dimension of one element is never used, but must be valid.
  const auto bytes = [](int64_t stride, uint64_t n) {
    return n == 1 ? kMinStride : static_cast<uint64_t>(stride) * 2;
  };
  const std::array<uint64_t, kDimensions - 1> strides = {
      bytes(x.stride_s, extents[1]), bytes(x.stride_head, extents[2]),
      bytes(x.stride_group, extents[3]), bytes(x.stride_b, extents[4])};
  const std::array<uint32_t, kDimensions> box = {kColumns, static_cast<uint32_t>(rows), 1, 1, 1};
  const std::array<uint32_t, kDimensions> steps = {1, 1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode()(&map,
               x.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                           : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
               kDimensions, const_cast<void*>(x.data), extents.data(), strides.data(), box.data(),
               steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  throw DeviceError(fmt::format(
      "cuTensorMapEncodeTiled: error {} for heads of {} channels, {} tokens, {} samples, strides "
      "{}, "
      "{}, {}, {} bytes",
      static_cast<int>(result), x.d, x.s, x.b, strides[0], strides[1], strides[2], strides[3]));
}

}  // namespace megatron::kernels::cuda
