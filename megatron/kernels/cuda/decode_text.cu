#include "megatron/kernels/decode_text.h"

#include "megatron/core/error.h"
#include "megatron/device/cuda/check.h"
#include "megatron/kernels/cuda/capability.h"
#include "megatron/kernels/cuda/decode_text_kernel.cuh"
#include "megatron/kernels/cuda/launch.cuh"

namespace megatron::kernels::cuda {
namespace text {
namespace {

static_assert(kLanesOfWarp == kWarp);

Division division_on(const DecodeTextShape& s, Device device) {
  const int64_t columns = columns_of(s);
  if (columns == 0) return {};
  const void* const kernel = reinterpret_cast<const void*>(kernel_of(s, columns));
  cudaFuncAttributes attributes{};
  MG_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  return division_of(s, multiprocessors(device),
                     max_shared_bytes(device) - static_cast<int64_t>(attributes.sharedSizeBytes));
}

}  // namespace
}  // namespace text

int64_t decode_text_workspace_bytes(const DecodeTextShape& shape) {
  const auto most_splits = static_cast<int>(text::kMostBlocks / shape.heads);
  return int64_t{text::workspace_offsets(shape, most_splits).end} *
         static_cast<int64_t>(sizeof(text::Word));
}

bool has_decode_text(const DecodeTextShape& shape, Device device) {
  const bool has_type = shape.dtype == DType::kBFloat16 || shape.dtype == DType::kFloat16;
  const text::Kernel any_kernel = text::kernel_of(shape, text::kMaxColumns);
  if (!has_type || !has_clusters(reinterpret_cast<const void*>(any_kernel), device)) return false;
  return text::division_on(shape, device).blocks > 0;
}

void decode_text(TensorView logits, ConstView x, const DecodeText& text, ConstView pages,
                 ConstView length, int64_t max_length, TensorView workspace, Stream stream) {
  const text::Division division = text::division_on(text.shape, stream.device);
  invariant(division.blocks > 0, "decode_text: has_decode_text() is asked first");
  const text::Parameters parameters =
      text::parameters_of(logits, x, text, pages, length, max_length, workspace, division);
  const text::Kernel kernel = text::kernel_of(text.shape, division.columns);
  allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<int>(division.bytes),
                     stream.device);
  // Blocks wait for each other, so all of them must be resident: a cooperative launch.
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(division.blocks);
  config.blockDim = text::kBlockThreads;
  config.dynamicSmemBytes = static_cast<size_t>(division.bytes);
  config.stream = native(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  MG_CUDA(cudaLaunchKernelEx(&config, kernel, parameters));
}

}  // namespace megatron::kernels::cuda
