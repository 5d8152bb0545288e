#pragma once

#include <functional>

#include "megatron/autograd/variable.h"

namespace megatron {

// A rank's columns of the vocabulary, and the collective that gathers the ranks' statistics.
struct VocabularyShard {
  int64_t first_column = 0;
  // Size of the vocabulary; later columns, on any rank, are padding. 0: this rank has all columns,
  // and none are padding.
  int64_t num_columns = 0;
  // This rank's [s, b, 4] -> all ranks' [ranks, s, b, 4]; null: this rank has all columns.
  std::function<Tensor(const Tensor& statistics)> gather = nullptr;
};

// losses[i, j] = -log softmax(logits[i, j])[labels[j, i]], smoothed as in kernels/cross_entropy.h.
//
//   logits [s, b, v/ranks]   labels [b, s] int64   losses [s, b] fp32
//
// The softmax ignores columns that pad the vocabulary. A negative label has loss 0 and no gradient.
// Labels are on the host, where this function checks them, or on the device of logits after
// expect_labels().
//
// Saves logits and one float per token. The backward pass writes the gradient over the logits if
// nothing else holds their memory: keep no handle on logits, or training pays for them twice.
Variable cross_entropy(const Variable& logits, const Tensor& labels, float label_smoothing = 0,
                       const VocabularyShard& shard = {});

// The steps of cross_entropy() for chunked logits: a chunk is the logits [n, b, v/ranks] of the
// positions from `first` on; labels are those of all positions, on the device of logits.
//
//   losses, log_sum_exp [n, b] fp32 out
void cross_entropy_into(Tensor& losses, Tensor& log_sum_exp, const Tensor& logits,
                        const Tensor& labels, int64_t first, float label_smoothing,
                        const VocabularyShard& shard);
// Replaces the logits by their gradient.   dlosses [n, b] fp32
void cross_entropy_gradient_inplace(Tensor& logits, const Tensor& dlosses,
                                    const Tensor& log_sum_exp, const Tensor& labels, int64_t first,
                                    float label_smoothing, const VocabularyShard& shard);
// Throws ShapeError unless labels fit logits of the shape [s, b, v], and for the first label that
// is not below num_columns, if labels are on the host.
void expect_labels_fit(const Tensor& labels, const Shape& logits, int64_t num_columns);

// Throws ShapeError for the first label that is not below num_columns. Labels are on the host.
void expect_labels(const Tensor& labels, int64_t num_columns);

// sum(losses * loss_mask) / divisor, a scalar.
//   losses [s, b] fp32   loss_mask [b, s] fp32 on any device, 1 where a token counts, 0 where not
//   divisor [] fp32 on any device; undefined: max(sum(loss_mask), 1)
Variable masked_mean(const Variable& losses, const Tensor& loss_mask, const Tensor& divisor = {});

// log softmax(logits[i, j])[ids[j, i]] without gradient, for scoring; 0 for a negative id.
//   logits [s, b, v/ranks]   ids [b, s] int64 on the host   result [s, b] fp32
Tensor log_probabilities(const Tensor& logits, const Tensor& ids,
                         const VocabularyShard& shard = {});

}  // namespace megatron
