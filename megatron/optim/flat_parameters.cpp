#include "megatron/optim/flat_parameters.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/elementwise.h"

namespace megatron {
namespace {

FlatBuffer& buffer_of(std::vector<FlatBuffer>& buffers, const OptimizedParameter& parameter) {
  const DType dtype = parameter.variable.dtype();
  const auto found = std::find_if(buffers.begin(), buffers.end(), [&](const FlatBuffer& b) {
    return b.dtype == dtype && b.has_partial_gradients == parameter.has_partial_gradients;
  });
  if (found != buffers.end()) return *found;
  FlatBuffer& buffer = buffers.emplace_back();
  buffer.dtype = dtype;
  buffer.has_partial_gradients = parameter.has_partial_gradients;
  return buffer;
}

void take_over(FlatBuffer& buffer, std::vector<OptimizedParameter>& parameters,
               const FlatParametersOptions& options) {
  std::vector<FlatItem> items;
  for (const size_t index : buffer.parameters) {
    const OptimizedParameter& parameter = parameters[index];
    items.push_back(
        {.numel = parameter.variable.data().numel(), .has_own_bucket = parameter.is_tied});
  }
  FlatLayoutOptions layout = options.layout;
  if (options.num_shares > 1) {  // shares have the alignment of parameters
    layout.bucket_alignment =
        std::lcm(layout.bucket_alignment, layout.alignment * options.num_shares);
  }
  buffer.layout = flat_layout(items, layout);
  buffer.shares = shares_of(buffer.layout, options.share, options.num_shares);

  const Stream stream = parameters[buffer.parameters.front()].variable.stream();
  const DType grad_dtype =
      options.accumulate_allreduce_grads_in_fp32 ? DType::kFloat32 : buffer.dtype;
  {
    const MemoryScope scope(MemoryCategory::kParameters);
    buffer.params = zeros({buffer.layout.numel}, buffer.dtype, stream);
  }
  {
    const MemoryScope scope(MemoryCategory::kGradients);
    buffer.grads = zeros({buffer.layout.numel}, grad_dtype, stream);
  }
  for (size_t i = 0; i < buffer.parameters.size(); ++i) {
    Variable& variable = parameters[buffer.parameters[i]].variable;
    const Shape shape = variable.shape();
    Tensor param = part_of(buffer.params, buffer.layout.places[i], shape);
    copy_into(param, variable.data());
    variable.set_data(param);
    variable.set_main_grad(part_of(buffer.grads, buffer.layout.places[i], shape));
  }
}

}  // namespace

std::vector<OptimizedParameter> optimized_parameters(const Module& module,
                                                     int tensor_parallel_rank) {
  std::vector<OptimizedParameter> parameters;
  for (const NamedParameter& named : named_parameters(module)) {
    if (!named.variable.requires_grad()) continue;
    OptimizedParameter& parameter = parameters.emplace_back();
    parameter.name = named.name;
    parameter.variable = named.variable;
    parameter.has_weight_decay = is_decayed(named.info.role);
    parameter.has_decoupled_lr = named.info.is_embedding_or_output;
    parameter.is_tied = named.info.is_tied;
    parameter.sharding = named.info.sharding;
    parameter.has_partial_gradients = named.info.has_partial_gradients;
    const bool is_replica = named.info.sharding.is_whole() && tensor_parallel_rank > 0;
    parameter.counts_in_norm = !named.info.is_copy && !is_replica;
  }
  return parameters;
}

bool is_decayed(ParameterRole role) {
  return role != ParameterRole::kBias && role != ParameterRole::kNorm;
}

Tensor part_of(const Tensor& flat, const FlatPlace& place, const Shape& shape) {
  return flat.slice(place.begin, place.end - place.begin).reshape(shape);
}

RangeTables range_tables(const FlatRanges& ranges, Stream stream) {
  const auto count = static_cast<int64_t>(ranges.ends.size());
  return {tensor_of(ranges.ends, {count}).to(stream), tensor_of(ranges.groups, {count}).to(stream)};
}

FlatParameters::FlatParameters(std::vector<OptimizedParameter> parameters,
                               const FlatParametersOptions& options)
    : parameters_(std::move(parameters)) {
  std::erase_if(parameters_,
                [](const OptimizedParameter& p) { return !p.variable.requires_grad(); });
  for (size_t i = 0; i < parameters_.size(); ++i) {
    buffer_of(buffers_, parameters_[i]).parameters.push_back(i);
  }
  for (FlatBuffer& buffer : buffers_) take_over(buffer, parameters_, options);
}

int64_t FlatParameters::num_elements() const {
  int64_t count = 0;
  for (const OptimizedParameter& parameter : parameters_)
    count += parameter.variable.data().numel();
  return count;
}

void FlatParameters::zero_grads() {
  for (FlatBuffer& buffer : buffers_) {
    const TraceRange range("zero_grads", buffer.grads.stream());
    kernels::fill(buffer.grads.view(), 0.0f, buffer.grads.stream());
  }
}

}  // namespace megatron
