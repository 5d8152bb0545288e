#include "megatron/parallel/tensor/input_gradient.h"

#include <utility>

namespace megatron {

InputGradient::InputGradient(Tensor partial, const TensorParallel& tp)
    : partial_(std::move(partial)) {
  if (!partial_.defined() || tp.size() == 1) {
    dx_ = partial_;
  } else if (tp.sequence_parallel) {
    dx_ = Tensor(partial_.shape().with(0, partial_.size(0) / tp.size()), partial_.dtype(),
                 partial_.stream());
    pending_ = comm::start_reduce_scatter(dx_.view(), partial_.view(), comm::Reduce::kSum, tp.group,
                                          dx_.stream());
  } else {
    dx_ = partial_;
    pending_ = comm::start_all_reduce(dx_.view(), comm::Reduce::kSum, tp.group, dx_.stream());
  }
  if (!tp.overlaps_gradients) pending_.wait();
}

Tensor InputGradient::finish() {
  pending_.wait();
  return std::move(dx_);
}

}  // namespace megatron
