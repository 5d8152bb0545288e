#include "megatron/optim/gradient_reduction.h"

#include "megatron/core/error.h"

namespace megatron {

GradientReduction::GradientReduction(FlatParameters& parameters, const ParallelContext& parallel,
                                     const GradientReductionOptions& options)
    : parameters_(parameters),
      parallel_(parallel),
      options_(options),
      tied_(tied_parameters(parameters.parameters(), parallel.pipeline)) {
  const std::vector<OptimizedParameter>& all = parameters_.parameters();
  for (size_t b = 0; b < parameters_.buffers().size(); ++b) {
    const FlatBuffer& buffer = parameters_.buffers()[b];
    const size_t first = buckets_.size();
    for (const FlatBucket& bucket : buffer.layout.buckets) {
      Bucket& made = buckets_.emplace_back();
      made.buffer = b;
      made.span = {bucket.begin, bucket.end};
      made.waits = buffer.has_partial_gradients;
    }
    for (size_t i = 0; i < buffer.parameters.size(); ++i) {
      const size_t bucket = first + static_cast<size_t>(buffer.layout.places[i].bucket);
      const OptimizedParameter& parameter = all[buffer.parameters[i]];
      if (parameter.is_tied) buckets_[bucket].waits = true;
      Variable variable = parameter.variable;
      if (options_.overlap_grad_reduce) variable.on_gradient([this, bucket] { used(bucket); });
      if (options_.overlap_param_gather) {
        variable.on_use([this, bucket] { wait_for_parameters(buckets_[bucket]); });
      }
    }
  }
}

GradientReduction::~GradientReduction() {
  for (const OptimizedParameter& parameter : parameters_.parameters()) {
    Variable variable = parameter.variable;
    if (options_.overlap_grad_reduce) variable.on_gradient(nullptr);
    if (options_.overlap_param_gather) variable.on_use(nullptr);
  }
}

void GradientReduction::begin(int64_t num_microbatches) {
  num_microbatches_ = num_microbatches;
  for (Bucket& bucket : buckets_) bucket.uses = 0;
}

bool GradientReduction::is_quiet(int64_t microbatch, int64_t num_microbatches) const {
  if (parallel_.data.size() == 1) return true;
  const bool waits = options_.overlap_param_gather && microbatch == 0;
  const bool starts = options_.overlap_grad_reduce && microbatch + 1 == num_microbatches;
  return !waits && !starts;
}

void GradientReduction::used(size_t index) {
  Bucket& bucket = buckets_[index];
  bucket.uses += 1;
  const bool is_complete = bucket.uses == bucket.num_uses * num_microbatches_;
  if (is_complete && !bucket.waits) start(bucket);
}

void GradientReduction::start(Bucket& bucket) {
  invariant(!bucket.is_reduced, "a bucket is reduced once");
  bucket.is_reduced = true;
  if (parallel_.data.size() == 1) return;
  const FlatBuffer& buffer = parameters_.buffers()[bucket.buffer];
  Tensor grads = buffer.grads.slice(bucket.span.begin, bucket.span.size());
  if (options_.use_distributed_optimizer) {
    const int64_t share = bucket.span.size() / parallel_.data.size();
    Tensor own = grads.slice(parallel_.data.rank() * share, share);
    bucket.pending = comm::start_reduce_scatter(own.view(), grads.view(), comm::Reduce::kSum,
                                                parallel_.data, grads.stream());
  } else {
    bucket.pending =
        comm::start_all_reduce(grads.view(), comm::Reduce::kSum, parallel_.data, grads.stream());
  }
}

void GradientReduction::finish() {
  // An update changes this rank's part, which others may still read in unfinished gathers.
  for (Bucket& bucket : buckets_) wait_for_parameters(bucket);
  for (FlatBuffer& buffer : parameters_.buffers()) {
    if (!buffer.has_partial_gradients) continue;
    comm::all_reduce(buffer.grads.view(), comm::Reduce::kSum, parallel_.tensor.group,
                     buffer.grads.stream());
  }
  for (const TiedParameter& tied : tied_) {
    Tensor grad = tied.variable.grad();
    comm::all_reduce(grad.view(), comm::Reduce::kSum, tied.stages, grad.stream());
  }
  for (Bucket& bucket : buckets_) {
    if (!bucket.is_reduced) start(bucket);
  }
  for (Bucket& bucket : buckets_) {
    bucket.pending.wait();
    bucket.is_reduced = false;
    bucket.num_uses = bucket.uses / num_microbatches_;  // the first iteration counts
  }
}

void GradientReduction::gather_parameters() {
  if (!options_.use_distributed_optimizer || parallel_.data.size() == 1) return;
  // Buckets hold parameters in reverse order of their use in the forward pass.
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    const FlatBuffer& buffer = parameters_.buffers()[bucket->buffer];
    Tensor params = buffer.params.slice(bucket->span.begin, bucket->span.size());
    const int64_t share = bucket->span.size() / parallel_.data.size();
    const Tensor own = params.slice(parallel_.data.rank() * share, share);
    bucket->gathering =
        comm::start_all_gather(params.view(), own.view(), parallel_.data, params.stream());
    bucket->is_gathered = false;
  }
  if (options_.overlap_param_gather) return;
  for (Bucket& bucket : buckets_) wait_for_parameters(bucket);
}

void GradientReduction::wait_for_parameters(Bucket& bucket) {
  if (bucket.is_gathered) return;
  bucket.is_gathered = true;
  bucket.gathering.wait();
}

}  // namespace megatron
