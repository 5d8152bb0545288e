#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"

// Cross entropy of logits [s, b, v] with their labels, in three kernels, so that the vocabulary
// may be spread over ranks. Each rank computes statistics of its columns, all ranks gather and
// combine them, and each rank computes its part of the gradient without communication. A single
// rank does the same with one set of statistics.
//
// num_columns is the size of the vocabulary. Columns with larger ids are padding: they contribute
// nothing, and their gradient is 0.
//
// Labels are int64, ids of the vocabulary; a negative label means "no target here": loss 0,
// gradient 0. Logits may be fp32, fp16 or bf16; all arithmetic is fp32.
namespace megatron::kernels {

// The statistics of a row, in this order.
enum CrossEntropyStatistic {
  kMax,       // largest logit; -infinity without columns
  kExpSum,    // sum of exp(logit - max)
  kTarget,    // the label's logit if its column is on this rank, else 0
  kLogitSum,  // sum of the logits, for label smoothing
  kNumCrossEntropyStatistics,
};

// The labels of `s` positions of longer sequences: those from first_position on.
//   ids [b, S] int64
struct Labels {
  Labels(ConstView the_ids, int64_t first = 0)  // NOLINT(google-explicit-constructor): often all
      : ids(the_ids), first_position(first) {}
  Labels(TensorView the_ids)  // NOLINT(google-explicit-constructor): as ConstView
      : Labels(ConstView(the_ids)) {}

  ConstView ids;
  int64_t first_position;
};
// Throws ShapeError unless there are labels for the rows of `shape`, which begins with [s, b].
void expect_labels_cover(const Labels& labels, const Shape& shape);

// statistics  [s, b, 4]     out  fp32
// logits      [s, b, v/tp]  in
// first_column: the id of column 0, vp_rank * v/tp.
void cross_entropy_statistics(TensorView statistics, ConstView logits, const Labels& labels,
                              int64_t first_column, int64_t num_columns, Stream stream);

// The loss of each token, -log p(label), with p = softmax over the columns of all ranks. With label
// smoothing e the target has weight 1 - e * K/(K-1) and the rest is spread evenly over all K =
// num_columns: loss = (1 - q) * -log p(label) - q * mean(log p), q = e * K/(K-1).
//
//   losses           [s, b]         out  fp32
//   log_sum_exp      [s, b]         out  fp32, for the backward pass
//   statistics       [tp, s, b, 4]  in   fp32
void cross_entropy_losses(TensorView losses, TensorView log_sum_exp, ConstView statistics,
                          const Labels& labels, float label_smoothing, int64_t num_columns,
                          Stream stream);

// dlogits = (softmax - target distribution) * dlosses.
//   dlogits [s, b, v/tp] out, dtype of logits, may be logits    dlosses [s, b] in, fp32
//   logits [s, b, v/tp] in    log_sum_exp [s, b] in, fp32
void cross_entropy_backward(TensorView dlogits, ConstView dlosses, ConstView logits,
                            ConstView log_sum_exp, const Labels& labels, int64_t first_column,
                            float label_smoothing, int64_t num_columns, Stream stream);

namespace cpu {
decltype(kernels::cross_entropy_statistics) cross_entropy_statistics;
decltype(kernels::cross_entropy_losses) cross_entropy_losses;
decltype(kernels::cross_entropy_backward) cross_entropy_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::cross_entropy_statistics) cross_entropy_statistics;
decltype(kernels::cross_entropy_losses) cross_entropy_losses;
decltype(kernels::cross_entropy_backward) cross_entropy_backward;
}  // namespace cuda

}  // namespace megatron::kernels
