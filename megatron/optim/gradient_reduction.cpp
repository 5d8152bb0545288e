#include "megatron/optim/gradient_reduction.h"

#include <algorithm>
#include <utility>

#include "megatron/core/error.h"

namespace megatron {
namespace {

// This rank's share of a whole bucket.
Tensor own_share(const FlatBuffer& buffer, const Tensor& bucket) {
  const int64_t share = bucket.numel() / buffer.sharers.size();
  return bucket.slice(buffer.sharers.rank() * share, share);
}

}  // namespace

GradientReduction::GradientReduction(FlatParameters& parameters, const comm::Group& pipeline,
                                     const GradientReductionOptions& options)
    : parameters_(parameters),
      options_(options),
      tied_(tied_parameters(parameters.parameters(), pipeline)) {
  bool divides_gradients = false;
  bool divides_parameters = false;
  size_t num_divided = 0;
  for (size_t b = 0; b < parameters_.buffers().size(); ++b) {
    const FlatBuffer& buffer = parameters_.buffers()[b];
    const bool divides = !buffer.bucket_params.empty() && !buffer.is_in_fp8;
    if (!divides) add_buckets(b);
    if (buffer.bucket_grads.empty()) continue;
    watch_divided(buffer, num_divided);
    num_divided += buffer.bucket_grads.size();
    divides_gradients = true;
    divides_parameters = divides_parameters || divides;
  }
  if (divides_gradients) divided_gradients_.emplace(parameters_);
  if (divides_parameters) divided_parameters_.emplace(parameters_);
}

void GradientReduction::add_buckets(size_t index) {
  const FlatBuffer& buffer = parameters_.buffers()[index];
  const size_t first = buckets_.size();
  for (const FlatBucket& bucket : buffer.layout.buckets) {
    Bucket& made = buckets_.emplace_back();
    made.buffer = index;
    made.span = {bucket.begin, bucket.end};
    made.has_divided_gradients = !buffer.bucket_grads.empty();
    made.waits = buffer.has_partial_gradients();
  }
  for (size_t i = 0; i < buffer.parameters.size(); ++i) {
    const size_t bucket = first + static_cast<size_t>(buffer.layout.places[i].bucket);
    const OptimizedParameter& parameter = parameters_.parameters()[buffer.parameters[i]];
    if (parameter.is_tied) buckets_[bucket].waits = true;
    Variable variable = parameter.variable;
    if (options_.overlap_grad_reduce && !buckets_[bucket].has_divided_gradients) {
      variable.on_gradient([this, bucket] { used(bucket); });
    }
    if (options_.overlap_param_gather) {
      variable.on_use([this, bucket] { wait_for_parameters(buckets_[bucket]); });
    }
  }
}

void GradientReduction::watch_divided(const FlatBuffer& buffer, size_t first_bucket) {
  for (size_t i = 0; i < buffer.parameters.size(); ++i) {
    const size_t bucket = first_bucket + static_cast<size_t>(buffer.layout.places[i].bucket);
    Variable variable = parameters_.parameters()[buffer.parameters[i]].variable;
    variable.on_op([this, bucket](bool is_recorded) {
      if (is_recorded) divided_gradients_->expect(bucket);
      if (divided_parameters_) divided_parameters_->op_done(bucket);
    });
    variable.on_gradient([this, bucket] {
      divided_gradients_->delivered(bucket);
      if (divided_parameters_) divided_parameters_->op_done(bucket);
    });
  }
}

GradientReduction::~GradientReduction() {
  for (const OptimizedParameter& parameter : parameters_.parameters()) {
    Variable variable = parameter.variable;
    variable.on_op(nullptr);
    variable.on_gradient(nullptr);
    variable.on_use(nullptr);
  }
}

void GradientReduction::begin(int64_t num_microbatches) {
  num_microbatches_ = num_microbatches;
  for (Bucket& bucket : buckets_) bucket.uses = 0;
  if (divided_gradients_) divided_gradients_->begin();
}

bool GradientReduction::is_quiet(int64_t microbatch, int64_t num_microbatches) const {
  const bool is_alone = std::ranges::all_of(parameters_.buffers(), [](const FlatBuffer& buffer) {
    return buffer.sharers.size() == 1 && buffer.copies.size() == 1;
  });
  if (is_alone) return true;
  if (divided_gradients_) return false;
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
  const FlatBuffer& buffer = parameters_.buffers()[bucket.buffer];
  const Stream stream = buffer.grads.stream();
  Tensor grads = buffer.grads.slice(bucket.span.begin, bucket.span.size());
  Tensor own = own_share(buffer, grads);
  comm::Pending summed_by_sharers = comm::start_reduce_scatter(
      own.view(), grads.view(), comm::Reduce::kSum, buffer.sharers, stream);
  bucket.pending = comm::start_all_reduce(own.view(), comm::Reduce::kSum, buffer.copies, stream,
                                          std::move(summed_by_sharers));
}

void GradientReduction::finish() {
  // An update changes this rank's part, which others may still read in unfinished gathers.
  finish_gathers();
  if (divided_parameters_) divided_parameters_->drop();
  if (divided_gradients_) divided_gradients_->finish();
  for (FlatBuffer& buffer : parameters_.buffers()) {
    comm::all_reduce(buffer.grads.view(), comm::Reduce::kSum, buffer.partial,
                     buffer.grads.stream());
  }
  for (const TiedParameter& tied : tied_) {
    Tensor grad = tied.variable.grad();
    comm::all_reduce(grad.view(), comm::Reduce::kSum, tied.stages, grad.stream());
  }
  for (Bucket& bucket : buckets_) {
    if (!bucket.is_reduced && !bucket.has_divided_gradients) start(bucket);
  }
  for (Bucket& bucket : buckets_) {
    bucket.pending.wait();
    bucket.is_reduced = false;
    bucket.num_uses = bucket.uses / num_microbatches_;  // the first iteration counts
  }
}

void GradientReduction::gather_parameters() {
  // Buckets hold parameters in reverse order of their use in the forward pass.
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    const FlatBuffer& buffer = parameters_.buffers()[bucket->buffer];
    if (buffer.is_in_fp8 || buffer.sharers.size() == 1) continue;
    Tensor params = buffer.params.slice(bucket->span.begin, bucket->span.size());
    const Tensor own = own_share(buffer, params);
    bucket->gathering =
        comm::start_all_gather(params.view(), own.view(), buffer.sharers, params.stream());
    bucket->is_gathered = false;
  }
  if (!options_.overlap_param_gather) finish_gathers();
}

void GradientReduction::finish_gathers() {
  for (Bucket& bucket : buckets_) wait_for_parameters(bucket);
}

void GradientReduction::wait_for_parameters(Bucket& bucket) {
  if (bucket.is_gathered) return;
  bucket.is_gathered = true;
  bucket.gathering.wait();
}

}  // namespace megatron
