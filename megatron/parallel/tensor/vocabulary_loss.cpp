#include "megatron/parallel/tensor/vocabulary_loss.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/masked_mean.h"
#include "megatron/kernels/tanh.h"
#include "megatron/ops/cross_entropy.h"
#include "megatron/ops/elementwise.h"
#include "megatron/ops/linear.h"
#include "megatron/ops/tanh.h"
#include "megatron/parallel/tensor/input_gradient.h"
#include "megatron/parallel/tensor/linear.h"
#include "megatron/parallel/tensor/mappings.h"
#include "megatron/parallel/tensor/vocabulary.h"

namespace megatron {
namespace {

constexpr int64_t kRowsOfTile = 128;  // of products on a GPU

int64_t divided_up(int64_t size, int64_t by) { return (size + by - 1) / by; }

VocabularyShard shard_of(const VocabularyProduct& product, const LossTargets& targets,
                         const TensorParallel& tp) {
  return vocabulary_shard(product.weight.size(0), tp, targets.num_labels);
}

Variable loss_of_all_logits(const VocabularyProduct& product, const LossTargets& targets,
                            const TensorParallel& tp) {
  // Nothing here holds the logits: their gradient takes their place.
  const Variable losses = cross_entropy(logits_of(product, tp), targets.labels,
                                        targets.label_smoothing, shard_of(product, targets, tp));
  return masked_mean(losses, targets.loss_mask, targets.divisor);
}

// The mean of losses [s, b], and what it divides by.
class MaskedMean {
 public:
  MaskedMean(const LossTargets& targets, Tensor& losses)
      : losses_(losses),
        mask_(targets.loss_mask.to(losses.stream())),
        divisor_(targets.divisor.defined() ? targets.divisor.to(losses.stream()) : Tensor()),
        mean_({}, DType::kFloat32, losses.stream()),
        count_({}, DType::kFloat32, losses.stream()) {}

  const Tensor& mean() {
    const Tensor& losses = losses_;
    const Tensor& divisor = divisor_;
    kernels::masked_mean_forward(mean_.view(), count_.view(), losses.view(), mask_.view(),
                                 divisor.defined() ? divisor.view() : ConstView{}, losses.stream());
    return mean_;
  }
  // The gradient before the losses are known.
  Tensor gradient(const Tensor& dmean) {
    kernels::fill(losses_.view(), 0, losses_.stream());
    mean();  // counts
    Tensor dlosses = empty_like(losses_);
    kernels::masked_mean_backward(dlosses.view(), dmean.view(), std::as_const(count_).view(),
                                  mask_.view(), losses_.stream());
    return dlosses;
  }

 private:
  Tensor& losses_;
  const Tensor mask_;
  const Tensor divisor_;
  Tensor mean_;
  Tensor count_;
};

// The gradients of a product, summed over the pieces of its logits.
class ProductGradients {
 public:
  // whole_x [s, b, h]
  ProductGradients(const VocabularyProduct& product, const Tensor& whole_x,
                   const TensorParallel& tp)
      : tp_(tp),
        saved_(linear_saved(product.weight, product.bias)),
        partial_(product.x.requires_grad() ? empty_like(whole_x) : Tensor()),
        dweight_(saved_, product.weight.requires_grad()),
        dbias_(saved_.bias_sink, {product.weight.size(0)}, product.weight.dtype(), whole_x.stream(),
               product.bias.defined() && product.bias.requires_grad()),
        beta_(dbias_.beta()) {}

  // rows [n, b, h] of whole_x, from the position `first` on.   dlogits [n, b, v/tp]
  void add(const Tensor& dlogits, const Tensor& rows, int64_t first, bool is_last) {
    if (partial_.defined()) {
      Tensor part = partial_.slice(first, rows.size(0));
      linear_input_gradient_into(part, dlogits, saved_);
    }
    // Its sum over ranks runs beside the last product.
    if (is_last) dx_.emplace(std::move(partial_), tp_);
    dweight_.add(dlogits, rows);
    if (dbias_.view().is_null()) return;
    kernels::sum_rows(dbias_.view(), dlogits.rows(), beta_, dlogits.stream());
    beta_ = 1;
  }
  // The gradients of x, weight and bias.
  Grads finish() { return {dx_->finish(), dweight_.result(), dbias_.result()}; }

 private:
  const TensorParallel& tp_;
  const LinearSaved saved_;
  Tensor partial_;
  std::optional<InputGradient> dx_;
  WeightGradient dweight_;
  ParameterGradient dbias_;
  float beta_;
};

// The steps of logits_of() behind the product, in place, and their gradient.
class LogitScaling {
 public:
  explicit LogitScaling(const VocabularyProduct& product)
      : multiplier_(product.multiplier), cap_(product.cap) {}

  void apply(Tensor& logits, bool wants_gradient) {
    const Stream stream = logits.stream();
    const TensorView x = logits.view();
    if (cap_ > 0) {
      kernels::soft_cap_forward(x, x, multiplier_, cap_, stream);
      if (wants_gradient) capped_ = copied(logits);
    } else if (multiplier_ != 1) {
      kernels::scale(x, x, multiplier_, stream);
    }
  }
  // The gradient of the logits of the last apply().
  void apply_gradient(Tensor& dlogits) const {
    const Stream stream = dlogits.stream();
    const TensorView dx = dlogits.view();
    if (cap_ > 0) {
      kernels::soft_cap_backward(dx, dx, capped_.view(), multiplier_, cap_, stream);
    } else if (multiplier_ != 1) {
      kernels::scale(dx, dx, multiplier_, stream);
    }
  }

 private:
  float multiplier_;
  float cap_;
  Tensor capped_;
};

void expect_seed(const Tensor& dy, const Tensor& seed) {
  if (dy.view().data == seed.view().data) return;
  throw Error(
      "vocabulary_loss: the backward pass starts with another gradient than the seed that the loss "
      "was made with; leave the seed out for a loss that other ops change");
}

}  // namespace

int64_t positions_of_piece(int64_t s, int64_t b, int64_t columns, DType dtype,
                           int64_t max_logits_bytes) {
  const int64_t most =
      std::max<int64_t>(max_logits_bytes / std::max<int64_t>(b * columns * size_of(dtype), 1), 1);
  if (s <= most) return s;
  const int64_t even = divided_up(s, divided_up(s, most));
  const int64_t step = kRowsOfTile / std::gcd(b, kRowsOfTile);
  const int64_t whole_tiles = divided_up(even, step) * step;
  return whole_tiles <= most ? whole_tiles : even;
}

Variable logits_of(const VocabularyProduct& product, const TensorParallel& tp) {
  const TraceRange range("output_layer", product.x.stream());
  const Variable logits = column_parallel_linear(product.x, product.weight, product.bias, tp);
  if (product.cap > 0) return soft_cap(logits, product.multiplier, product.cap);
  return product.multiplier == 1 ? logits : scale(logits, product.multiplier);
}

Variable vocabulary_loss(const VocabularyProduct& product, const LossTargets& targets,
                         const TensorParallel& tp, const Tensor& seed, int64_t max_logits_bytes) {
  const Variable& x = product.x;
  const Variable& weight = product.weight;
  const Variable& bias = product.bias;
  const bool wants_gradients = grad_enabled() && (x.requires_grad() || weight.requires_grad() ||
                                                  (bias.defined() && bias.requires_grad()));
  if (wants_gradients && !seed.defined()) return loss_of_all_logits(product, targets, tp);

  const Stream stream = x.stream();
  const TraceRange range("vocabulary_loss", stream);
  const Tensor whole = tp.sequence_parallel && tp.size() > 1 ? gathered_sequence(x.data(), tp.group)
                                                             : x.data();  // [s, b, h]
  const VocabularyShard shard = shard_of(product, targets, tp);
  const int64_t s = whole.size(0);
  const int64_t b = whole.size(1);
  const int64_t columns = weight.size(0);
  expect_labels_fit(targets.labels, {s, b, columns},
                    shard.num_columns == 0 ? columns : shard.num_columns);
  const Tensor labels = targets.labels.to(stream);
  Tensor losses({s, b}, DType::kFloat32, stream);
  MaskedMean mean(targets, losses);
  const Tensor dlosses = wants_gradients ? mean.gradient(seed) : Tensor();
  std::optional<ProductGradients> gradients;
  if (wants_gradients) gradients.emplace(product, whole, tp);

  LogitScaling scaling(product);
  const int64_t size = positions_of_piece(s, b, columns, weight.dtype(), max_logits_bytes);
  for (int64_t first = 0; first < s; first += size) {
    const int64_t count = std::min(size, s - first);
    const Tensor rows = whole.slice(first, count);
    Tensor logits = linear_forward(rows, weight, bias);  // [n, b, v/tp]
    scaling.apply(logits, gradients.has_value());
    Tensor part = losses.slice(first, count);
    Tensor log_sum_exp = empty_like(part);
    cross_entropy_into(part, log_sum_exp, logits, labels, first, targets.label_smoothing, shard);
    if (!gradients) continue;
    cross_entropy_gradient_inplace(logits, dlosses.slice(first, count), log_sum_exp, labels, first,
                                   targets.label_smoothing, shard);
    scaling.apply_gradient(logits);
    gradients->add(logits, rows, first, first + count == s);
  }
  return record("vocabulary_loss", mean.mean(), {x, weight, bias},
                [made = gradients ? gradients->finish() : Grads(), seed](const Tensor& dy,
                                                                         const Wants&) mutable {
                  expect_seed(dy, seed);
                  return std::move(made);
                });
}

}  // namespace megatron
