#include "megatron/ops/cross_entropy.h"

#include <fmt/format.h>

#include <utility>

#include "megatron/device/trace.h"
#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/masked_mean.h"

namespace megatron {
namespace {

int64_t num_columns(const Tensor& logits, const VocabularyShard& shard) {
  return shard.num_columns == 0 ? logits.size(-1) : shard.num_columns;
}

struct Losses {
  Tensor losses;
  Tensor log_sum_exp;
  Tensor labels;  // on the device of logits
};

Losses losses_of(const Tensor& logits, const Tensor& given_labels, float label_smoothing,
                 const VocabularyShard& shard) {
  expect_labels_fit(given_labels, logits.shape(), num_columns(logits, shard));
  const Shape shape = {logits.size(0), logits.size(1)};
  const Stream stream = logits.stream();
  Losses result{Tensor(shape, DType::kFloat32, stream), Tensor(shape, DType::kFloat32, stream),
                given_labels.to(stream)};
  cross_entropy_into(result.losses, result.log_sum_exp, logits, result.labels, 0, label_smoothing,
                     shard);
  return result;
}

}  // namespace

void expect_labels(const Tensor& labels, int64_t num_columns) {
  const auto all = labels.span<int64_t>();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] < num_columns) continue;
    const auto length = static_cast<size_t>(labels.size(1));
    throw ShapeError(fmt::format(
        "cross_entropy: label {} at sample {}, position {} is not below the vocabulary size {}; "
        "check that the data's tokenizer fits the model",
        all[i], i / length, i % length, num_columns));
  }
}

void expect_labels_fit(const Tensor& labels, const Shape& logits, int64_t num_columns) {
  if (logits.rank() != 3) {
    throw ShapeError(
        fmt::format("cross_entropy: logits have shape {}, expected [s, b, v]", logits.str()));
  }
  expect_shape(labels.shape(), {logits[1], logits[0]}, "cross_entropy: labels");
  if (labels.stream().device.has_host_memory()) expect_labels(labels, num_columns);
}

void cross_entropy_into(Tensor& losses, Tensor& log_sum_exp, const Tensor& logits,
                        const Tensor& labels, int64_t first, float label_smoothing,
                        const VocabularyShard& shard) {
  const Stream stream = logits.stream();
  const Shape shape = logits.shape().with(2, kernels::kNumCrossEntropyStatistics);
  Tensor statistics(shape, DType::kFloat32, stream);
  const kernels::Labels targets(labels.view(), first);
  kernels::cross_entropy_statistics(statistics.view(), logits.view(), targets, shard.first_column,
                                    num_columns(logits, shard), stream);
  const Tensor of_all_ranks = shard.gather ? shard.gather(statistics)
                                           : statistics.reshape({1, shape[0], shape[1], shape[2]});
  kernels::cross_entropy_losses(losses.view(), log_sum_exp.view(), of_all_ranks.view(), targets,
                                label_smoothing, num_columns(logits, shard), stream);
}

void cross_entropy_gradient_inplace(Tensor& logits, const Tensor& dlosses,
                                    const Tensor& log_sum_exp, const Tensor& labels, int64_t first,
                                    float label_smoothing, const VocabularyShard& shard) {
  kernels::cross_entropy_backward(logits.view(), dlosses.view(), std::as_const(logits).view(),
                                  log_sum_exp.view(), kernels::Labels(labels.view(), first),
                                  shard.first_column, label_smoothing, num_columns(logits, shard),
                                  logits.stream());
}

Variable cross_entropy(const Variable& logits, const Tensor& labels, float label_smoothing,
                       const VocabularyShard& shard) {
  const TraceRange range("cross_entropy", logits.stream());
  Losses forward = losses_of(logits.data(), labels, label_smoothing, shard);
  return record(
      "cross_entropy", forward.losses, {logits},
      [logits = logits.data(), log_sum_exp = forward.log_sum_exp, labels = forward.labels,
       label_smoothing, first = shard.first_column,
       columns = num_columns(logits.data(), shard)](const Tensor& dy, const Wants&) -> Grads {
        Tensor dlogits = logits.is_sole_owner() ? logits : empty_like(logits);
        kernels::cross_entropy_backward(dlogits.view(), dy.view(), logits.view(),
                                        log_sum_exp.view(), labels.view(), first, label_smoothing,
                                        columns, dy.stream());
        return {dlogits};
      });
}

Variable masked_mean(const Variable& losses, const Tensor& loss_mask, const Tensor& divisor) {
  const TraceRange range("masked_mean", losses.stream());
  const Stream stream = losses.stream();
  const Tensor mask = loss_mask.to(stream);
  const Tensor by = divisor.defined() ? divisor.to(stream) : Tensor();
  Tensor mean({}, DType::kFloat32, stream);
  Tensor count({}, DType::kFloat32, stream);
  kernels::masked_mean_forward(mean.view(), count.view(), losses.data().view(), mask.view(),
                               by.defined() ? by.view() : ConstView{}, stream);
  return record("masked_mean", mean, {losses},
                [mask, count, shape = losses.shape()](const Tensor& dy, const Wants&) -> Grads {
                  Tensor dlosses(shape, DType::kFloat32, dy.stream());
                  kernels::masked_mean_backward(dlosses.view(), dy.view(), count.view(),
                                                mask.view(), dy.stream());
                  return {dlosses};
                });
}

Tensor log_probabilities(const Tensor& logits, const Tensor& ids, const VocabularyShard& shard) {
  Tensor losses = losses_of(logits, ids, 0, shard).losses;
  scale_inplace(losses, -1);
  return losses;
}

}  // namespace megatron
