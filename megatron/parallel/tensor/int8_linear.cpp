#include "megatron/parallel/tensor/int8_linear.h"

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/kernels/int8_matmul.h"
#include "megatron/parallel/tensor/linear.h"

namespace megatron {
namespace {

Tensor product(const Tensor& x, const Int8Weight& weight, const Variable& bias) {
  Tensor y(x.shape().with(-1, weight.numbers.size(0)), x.dtype(), x.stream());
  kernels::int8_matmul(y.rows(), x.rows(), weight.numbers.view(), weight.scales.view(),
                       bias.defined() ? bias.data().view() : ConstView{}, x.stream());
  return y;
}

}  // namespace

Int8Weight quantized_rows(const Tensor& weight) {
  const MemoryScope scope(MemoryCategory::kParameters);
  Int8Weight result{Tensor(weight.shape(), DType::kInt8, weight.stream()),
                    Tensor({weight.size(0)}, DType::kFloat32, weight.stream())};
  kernels::quantize_rows(result.numbers.view(), result.scales.view(), weight.view(),
                         weight.stream());
  return result;
}

Variable int8_column_parallel_linear(const Variable& x, const Int8Weight& weight,
                                     const Variable& bias, const TensorParallel& tp) {
  invariant(!tp.sequence_parallel, "layers in int8 do not divide sequences");
  return Variable(product(x.data(), weight, bias));
}

Variable int8_row_parallel_linear(const Variable& x, const Int8Weight& weight,
                                  const TensorParallel& tp) {
  invariant(!tp.sequence_parallel, "layers in int8 do not divide sequences");
  Tensor y = product(x.data(), weight, Variable());
  if (tp.size() > 1) comm::all_reduce(y.view(), comm::Reduce::kSum, tp.group, y.stream());
  return Variable(std::move(y));
}

void expect_device_for(InferenceWeights weights, Stream stream) {
  if (weights == InferenceWeights::kModel || stream.is_cpu()) return;
  throw ConfigError(
      "--inference-weights int8 is for the CPU: no kernel for GPUs multiplies weights in int8; "
      "give --device cpu, or remove the flag");
}

void keep_weights_in_int8(const Module& model, Stream stream) {
  expect_device_for(InferenceWeights::kInt8, stream);
  for (const auto* layer : modules_of<ColumnParallelLinear>(model)) layer->keep_weight_in_int8();
  for (const auto* layer : modules_of<RowParallelLinear>(model)) layer->keep_weight_in_int8();
  allocator_of(stream.device).empty_cache();
}

int64_t parameter_bytes(std::span<const ParameterSpec> specs, InferenceWeights weights,
                        int64_t tensor_parallel_size) {
  int64_t bytes = 0;
  for (const ParameterSpec& spec : specs) {
    const ParameterInfo& info = spec.info;
    const Shape local = info.sharding.on_rank(0, tensor_parallel_size).local(spec.shape);
    // The matrices that ranks divide are those of column- and row-parallel layers.
    const bool is_rounded = weights == InferenceWeights::kInt8 &&
                            info.role == ParameterRole::kMatrix && info.sharding.is_divided() &&
                            !info.is_adapter;
    bytes += is_rounded ? local.numel() + 4 * local[0] : local.numel() * size_of(spec.dtype);
  }
  return bytes;
}

}  // namespace megatron
