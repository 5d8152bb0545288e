#include "megatron/parallel/tensor/rounded_linear.h"

#include <fmt/format.h>

#include "megatron/comm/collectives.h"
#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/device/cuda.h"
#include "megatron/kernels/fp8_matmul.h"
#include "megatron/kernels/fp8_rows.h"
#include "megatron/kernels/int8_matmul.h"
#include "megatron/parallel/tensor/linear.h"

namespace megatron {
namespace {

Tensor product(const Tensor& x, const RoundedWeight& weight, const Variable& bias) {
  const Stream stream = x.stream();
  Tensor y(x.shape().with(-1, weight.numbers.size(0)), x.dtype(), stream);
  const ConstView added = bias.defined() ? bias.data().view() : ConstView{};
  if (weight.numbers.dtype() == DType::kInt8) {
    kernels::int8_matmul(y.rows(), x.rows(), weight.numbers.view(), weight.scales.view(), added,
                         stream);
    return y;
  }
  const ConstView rows = x.rows();
  Tensor numbers(rows.shape, DType::kFloat8E4M3, stream);
  Tensor scales({rows.size(0)}, DType::kFloat32, stream);
  kernels::fp8_quantize_rows(numbers.view(), scales.view(), rows, stream);
  constexpr auto kRow = kernels::Fp8Blocks::kRow;
  kernels::fp8_matmul(y.rows(), {numbers.view(), scales.view(), kRow},
                      {weight.numbers.view(), weight.scales.view(), kRow}, added, 0, stream);
  return y;
}

}  // namespace

const char* name_of(InferenceWeights weights) {
  switch (weights) {
    case InferenceWeights::kModel:
      return "model";
    case InferenceWeights::kInt8:
      return "int8";
    case InferenceWeights::kFp8:
      return "fp8";
  }
  throw InternalError("weights of inference: unknown form");
}

void expect_weight_for(InferenceWeights form, const Shape& weight, DType dtype, Stream stream) {
  if (form != InferenceWeights::kFp8 || stream.is_cpu()) return;
  if (weight[0] % 16 == 0 && weight[1] % 16 == 0 && size_of(dtype) == 2) return;
  throw ConfigError(fmt::format(
      "--inference-weights fp8 on a GPU needs weights of 16 bits whose rows and columns on each "
      "rank are multiples of 16, and one is {} in {}; give --inference-weights model",
      weight.str(), name_of(dtype)));
}

RoundedWeight rounded_rows(const Tensor& weight, InferenceWeights form) {
  expect_weight_for(form, weight.shape(), weight.dtype(), weight.stream());
  const MemoryScope scope(MemoryCategory::kParameters);
  const bool is_int8 = form == InferenceWeights::kInt8;
  RoundedWeight result{
      Tensor(weight.shape(), is_int8 ? DType::kInt8 : DType::kFloat8E4M3, weight.stream()),
      Tensor({weight.size(0)}, DType::kFloat32, weight.stream())};
  (is_int8 ? kernels::quantize_rows : kernels::fp8_quantize_rows)(
      result.numbers.view(), result.scales.view(), weight.view(), weight.stream());
  return result;
}

Variable rounded_column_parallel_linear(const Variable& x, const RoundedWeight& weight,
                                        const Variable& bias, const TensorParallel& tp) {
  invariant(!tp.sequence_parallel, "layers in 8 bits do not divide sequences");
  return Variable(product(x.data(), weight, bias));
}

Variable rounded_row_parallel_linear(const Variable& x, const RoundedWeight& weight,
                                     const TensorParallel& tp) {
  invariant(!tp.sequence_parallel, "layers in 8 bits do not divide sequences");
  Tensor y = product(x.data(), weight, Variable());
  if (tp.size() > 1) comm::all_reduce(y.view(), comm::Reduce::kSum, tp.group, y.stream());
  return Variable(std::move(y));
}

void expect_device_for(InferenceWeights weights, Stream stream) {
  if (weights == InferenceWeights::kModel || stream.is_cpu()) return;
  if (weights == InferenceWeights::kInt8) {
    throw ConfigError(
        "--inference-weights int8 is for the CPU: no kernel for GPUs multiplies weights in int8; "
        "give --inference-weights fp8 or --device cpu, or remove the flag");
  }
  const cuda::Properties gpu = cuda::properties(stream.device.index);
  if (gpu.major == 9) return;
  throw ConfigError(fmt::format(
      "--inference-weights fp8 needs a GPU of compute capability 9.0, and {} ({}) has {}.{}; give "
      "--inference-weights model",
      stream.device.str(), gpu.name, gpu.major, gpu.minor));
}

void round_weights(const Module& model, InferenceWeights form, Stream stream) {
  expect_device_for(form, stream);
  if (form == InferenceWeights::kModel) return;
  for (const auto* layer : modules_of<ColumnParallelLinear>(model)) layer->round_weight(form);
  for (const auto* layer : modules_of<RowParallelLinear>(model)) layer->round_weight(form);
  allocator_of(stream.device).empty_cache();
}

int64_t parameter_bytes(std::span<const Parameter> specs, InferenceWeights weights,
                        int64_t tensor_parallel_size) {
  int64_t bytes = 0;
  for (const Parameter& spec : specs) {
    const ParameterInfo& info = spec.info;
    const Shape local = info.sharding.on_rank(0, tensor_parallel_size).local(spec.whole().shape);
    // The matrices that ranks divide are those of column- and row-parallel layers.
    const bool is_rounded = weights != InferenceWeights::kModel &&
                            info.role == ParameterRole::kMatrix && info.sharding.is_divided() &&
                            !info.is_adapter;
    bytes += is_rounded ? local.numel() + 4 * local[0] : local.numel() * size_of(spec.dtype);
  }
  return bytes;
}

}  // namespace megatron
