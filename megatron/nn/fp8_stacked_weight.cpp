#include "megatron/nn/fp8_stacked_weight.h"

#include "megatron/device/allocator.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/fp8_matrices.h"

namespace megatron {

Fp8StackedWeight::Fp8StackedWeight(const Variable& weight, Stream stream)
    : weight_(weight), stream_(stream) {}

void Fp8StackedWeight::quantize() const {
  const TraceRange range("fp8_quantize", stream_);
  const Tensor& weight = weight_.data();
  Fp8Stack& y = *stack_;
  if (!y.rows.defined()) {
    const MemoryScope scope(MemoryCategory::kParameters, "weights and scales in FP8");
    const Shape& shape = weight.shape();
    y.rows = Tensor(shape, DType::kFloat8E4M3, stream_);
    y.columns = Tensor({shape[0], shape[2], shape[1]}, DType::kFloat8E4M3, stream_);
    y.scales = Tensor({shape[0]}, DType::kFloat32, stream_);
  }
  kernels::fp8_quantize_matrices(y.rows.view(), y.columns.view(), y.scales.view(), weight.view(),
                                 stream_);
}

}  // namespace megatron
