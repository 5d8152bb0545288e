#include "megatron/optim/flat_parameters.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/allocator.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/parallel/fp8_gather.h"

namespace megatron {
namespace {

FlatBuffer& buffer_of(std::vector<FlatBuffer>& buffers, const OptimizedParameter& parameter,
                      const FlatParametersOptions& options, const ParallelContext& parallel) {
  const DType dtype = parameter.variable.dtype();
  const MeshAxes copies = update_axes(parameter.gradient_axes, options.divides_state);
  const comm::Group sharers = parallel.group(parameter.gradient_axes.in(kDataAxes).without(copies));
  const bool is_matrix = options.separates_matrices && parameter.is_layer_matrix;
  const bool is_in_fp8 = sharers.size() > 1 && parameter.fp8 != nullptr;
  const auto found = std::find_if(buffers.begin(), buffers.end(), [&](const FlatBuffer& b) {
    return b.dtype == dtype && b.gradient_axes == parameter.gradient_axes &&
           b.has_matrices == is_matrix && b.is_in_fp8 == is_in_fp8 &&
           b.is_clipped_apart == parameter.is_clipped_apart;
  });
  if (found != buffers.end()) return *found;
  FlatBuffer& buffer = buffers.emplace_back();
  buffer.dtype = dtype;
  buffer.gradient_axes = parameter.gradient_axes;
  buffer.partial = parallel.group(parameter.gradient_axes.without(kDataAxes));
  buffer.sharers = sharers;
  buffer.copies = parallel.group(copies);
  buffer.has_matrices = is_matrix;
  buffer.is_in_fp8 = is_in_fp8;
  buffer.is_clipped_apart = parameter.is_clipped_apart;
  return buffer;
}

// The place of a parameter's elements: in its bucket's own tensor, else in the flat one.
Tensor place_in(const Tensor& flat, const std::vector<Tensor>& buckets, const FlatLayout& layout,
                size_t index, const Shape& shape) {
  const FlatPlace& place = layout.places[index];
  if (buckets.empty()) return part_of(flat, place, shape);
  const auto bucket = static_cast<size_t>(place.bucket);
  const int64_t begin = layout.buckets[bucket].begin;
  return part_of(buckets[bucket], {.begin = place.begin - begin, .end = place.end - begin}, shape);
}

void take_gradients(FlatBuffer& buffer, std::vector<OptimizedParameter>& parameters, DType dtype,
                    bool is_divided) {
  const MemoryScope scope(MemoryCategory::kGradients, "main gradients");
  const Stream stream = parameters[buffer.parameters.front()].variable.stream();
  int64_t kept = buffer.layout.numel;
  if (is_divided) {
    kept = 0;
    for (const FlatSpan& share : buffer.shares) kept += share.size();
    for (const FlatBucket& bucket : buffer.layout.buckets) {
      buffer.bucket_grads.emplace_back(Shape{bucket.end - bucket.begin}, dtype, stream);
      buffer.bucket_grads.back().drop_memory();
    }
  }
  buffer.grads = zeros({kept}, dtype, stream);
  for (size_t i = 0; i < buffer.parameters.size(); ++i) {
    Variable& variable = parameters[buffer.parameters[i]].variable;
    variable.set_main_grad(
        place_in(buffer.grads, buffer.bucket_grads, buffer.layout, i, variable.shape()));
  }
}

// Moves the parameters [first, last) of the buffer to their places.
void move_in(const FlatBuffer& buffer, std::vector<OptimizedParameter>& parameters,
             const FlatParametersOptions& options, size_t first, size_t last) {
  for (size_t i = first; i < last; ++i) {
    const OptimizedParameter& parameter = parameters[buffer.parameters[i]];
    Variable variable = parameter.variable;
    Tensor data = variable.data();
    if (!data.has_memory()) {
      data.take_memory();
      if (options.first_value) options.first_value(parameter, data);
    }
    Tensor place =
        place_in(buffer.params, buffer.bucket_params, buffer.layout, i, variable.shape());
    copy_into(place, data);
    variable.set_data(place);
  }
}

// Works bucket by bucket, so that peak memory is little more than the parameters.
void divide_parameters(FlatBuffer& buffer, std::vector<OptimizedParameter>& parameters,
                       const FlatParametersOptions& options) {
  const FlatLayout& layout = buffer.layout;
  size_t last = buffer.parameters.size();  // buckets have the parameters in reverse order
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    size_t first = last;
    while (first > 0 && layout.places[first - 1].bucket == static_cast<int64_t>(b)) --first;
    const int64_t size = layout.buckets[b].end - layout.buckets[b].begin;
    Tensor& whole =
        buffer.bucket_params.emplace_back(zeros({size}, buffer.dtype, buffer.params.stream()));
    move_in(buffer, parameters, options, first, last);
    Tensor own = share_of(buffer, &FlatBuffer::params, b);
    copy_into(own, whole.slice(buffer.sharers.rank() * own.numel(), own.numel()));
    whole.drop_memory();
    last = first;
  }
}

// For weights that exist only in FP8.
void refuse_access(FlatBuffer& buffer) {
  for (Tensor& bucket : buffer.bucket_params) {
    bucket.before_access(
        [] { throw InternalError("weights gathered in FP8 are in their layers"); });
  }
}

void take_over(FlatBuffer& buffer, std::vector<OptimizedParameter>& parameters,
               const FlatParametersOptions& options) {
  std::vector<FlatItem> items;
  const int64_t num_shares = buffer.sharers.size();
  const bool is_divided =
      options.divides_gradients && num_shares > 1 && !buffer.has_partial_gradients();
  for (const size_t index : buffer.parameters) {
    const OptimizedParameter& parameter = parameters[index];
    const int64_t numel = parameter.variable.data().numel();
    // An embedding is in use at both ends of a pass. It shall not keep layers.
    const bool is_apart = is_divided && parameter.has_decoupled_lr &&
                          numel >= std::max<int64_t>(options.layout.bucket_size, 1);
    items.push_back({.numel = numel, .has_own_bucket = parameter.is_tied || is_apart});
  }
  FlatLayoutOptions layout = options.layout;
  if (num_shares > 1) {  // shares have the alignment of parameters
    const int64_t unit = buffer.is_in_fp8 ? kFp8ShareUnit : layout.alignment;
    layout.bucket_alignment = std::lcm(layout.bucket_alignment, unit * num_shares);
  }
  buffer.layout = flat_layout(items, layout);
  buffer.shares = shares_of(buffer.layout, buffer.sharers.rank(), num_shares);

  const Stream stream = parameters[buffer.parameters.front()].variable.stream();
  const DType grad_dtype =
      options.accumulate_allreduce_grads_in_fp32 ? DType::kFloat32 : buffer.dtype;
  {
    const MemoryScope scope(MemoryCategory::kParameters);
    if (buffer.is_in_fp8 || (is_divided && options.divides_parameters)) {
      buffer.params = zeros({buffer.layout.numel / num_shares}, buffer.dtype, stream);
      divide_parameters(buffer, parameters, options);
      if (buffer.is_in_fp8) refuse_access(buffer);
    } else {
      buffer.params = zeros({buffer.layout.numel}, buffer.dtype, stream);
      move_in(buffer, parameters, options, 0, buffer.parameters.size());
    }
  }
  take_gradients(buffer, parameters, grad_dtype, is_divided);
}

}  // namespace

std::vector<OptimizedParameter> optimized_parameters(const Module& module,
                                                     const ParallelContext& parallel) {
  std::vector<OptimizedParameter> parameters;
  for (const Parameter& named : named_parameters(module)) {
    if (!named.variable.requires_grad()) continue;
    OptimizedParameter& parameter = parameters.emplace_back();
    parameter.name = named.name;
    parameter.variable = named.variable;
    parameter.has_weight_decay = is_decayed(named.info.role);
    parameter.has_decoupled_lr = named.info.is_embedding_or_output;
    parameter.is_tied = named.info.is_tied;
    parameter.sharding = named.info.sharding;
    parameter.gradient_axes = named.info.gradient_axes;
    parameter.shared_axes = named.info.shared_axes();
    parameter.is_layer_matrix = is_layer_matrix(named.info);
    parameter.row_parts = named.info.row_parts;
    parameter.counts_in_norm =
        !named.info.is_copy && parallel.is_first_along(parameter.shared_axes);
  }
  return parameters;
}

bool is_layer_matrix(const ParameterInfo& info) {
  return info.role == ParameterRole::kMatrix && !info.is_embedding_or_output;
}

bool is_decayed(ParameterRole role) {
  return role != ParameterRole::kBias && role != ParameterRole::kNorm;
}

Tensor part_of(const Tensor& flat, const FlatPlace& place, const Shape& shape) {
  return flat.slice(place.begin, place.end - place.begin).reshape(shape);
}

Tensor share_of(const FlatBuffer& buffer, Tensor FlatBuffer::*flat, size_t share) {
  const Tensor& all = buffer.*flat;
  const FlatSpan& span = buffer.shares[share];
  if (all.numel() == buffer.layout.numel) return all.slice(span.begin, span.size());
  int64_t begin = 0;
  for (size_t before = 0; before < share; ++before) begin += buffer.shares[before].size();
  return all.slice(begin, span.size());
}

std::vector<FlatPart> parts_in(const FlatBuffer& buffer, const FlatSpan& span) {
  std::vector<FlatPart> parts;
  for (size_t k = 0; k < buffer.parameters.size(); ++k) {
    const FlatPlace& place = buffer.layout.places[k];
    const int64_t begin = std::max(place.begin, span.begin);
    const int64_t end = std::min(place.end, span.end);
    if (begin >= end) continue;
    parts.push_back({.parameter = k,
                     .part = {begin - place.begin, end - place.begin},
                     .begin = begin - span.begin});
  }
  return parts;
}

RangeTables range_tables(const FlatRanges& ranges, Stream stream) {
  const auto count = static_cast<int64_t>(ranges.ends.size());
  return {tensor_of(ranges.ends, {count}).to(stream), tensor_of(ranges.groups, {count}).to(stream)};
}

FlatParameters::FlatParameters(std::vector<OptimizedParameter> parameters,
                               const FlatParametersOptions& options,
                               const ParallelContext& parallel)
    : parameters_(std::move(parameters)) {
  std::erase_if(parameters_,
                [](const OptimizedParameter& p) { return !p.variable.requires_grad(); });
  for (size_t i = 0; i < parameters_.size(); ++i) {
    buffer_of(buffers_, parameters_[i], options, parallel).parameters.push_back(i);
  }
  for (FlatBuffer& buffer : buffers_) take_over(buffer, parameters_, options);
}

int64_t FlatParameters::num_elements() const {
  int64_t count = 0;
  for (const OptimizedParameter& parameter : parameters_)
    count += parameter.variable.data().numel();
  return count;
}

void FlatParameters::visit_divided(const PartVisitor& visit) const {
  for (const FlatBuffer& buffer : buffers_) {
    for (size_t share = 0; share < buffer.bucket_params.size(); ++share) {
      const Tensor own = share_of(buffer, &FlatBuffer::params, share);
      for (const FlatPart& part : parts_in(buffer, buffer.shares[share])) {
        visit(parameters_[buffer.parameters[part.parameter]], part.part,
              own.slice(part.begin, part.part.size()));
      }
    }
  }
}

void FlatParameters::zero_grads() {
  for (FlatBuffer& buffer : buffers_) {
    const TraceRange range("zero_grads", buffer.grads.stream());
    kernels::fill(buffer.grads.view(), 0.0f, buffer.grads.stream());
  }
}

}  // namespace megatron
