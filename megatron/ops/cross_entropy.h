#pragma once

#include <functional>

#include "megatron/autograd/variable.h"

namespace megatron {

// The columns of the vocabulary that a rank has, and how it meets those of the others.
struct VocabularyShard {
  int64_t first_column = 0;
  // Size of the vocabulary; columns of any rank beyond it are padding. 0: the columns of this rank,
  // which has them all.
  int64_t num_columns = 0;
  // [s, b, 4] of this rank -> [ranks, s, b, 4] of all; null: this rank has them all.
  std::function<Tensor(const Tensor& statistics)> gather = nullptr;
};

// losses[i, j] = -log softmax(logits[i, j])[labels[j, i]], smoothed as kernels/cross_entropy.h
// says.
//
//   logits [s, b, v/ranks]   labels [b, s] int64   losses [s, b] fp32
//
// Columns that pad the vocabulary take no part in the softmax. A negative label has
// loss 0 and no gradient. Labels are on the host, where this checks them, or on the device of
// logits, having passed expect_labels().
//
// Saves logits and one float per token. The backward pass writes the gradient over the logits when
// nobody else holds their memory by then, so keep no handle on logits that training should not
// pay for twice.
Variable cross_entropy(const Variable& logits, const Tensor& labels, float label_smoothing = 0,
                       const VocabularyShard& shard = {});

// Throws ShapeError naming the first of the labels, on the host, that is not below num_columns.
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
