#pragma once

#include <cstdint>

#include "megatron/autograd/variable.h"
#include "megatron/parallel/parallel_context.h"

namespace megatron {

// The last product of a language model: logits = x weight^T + bias, [s, b, v/tp], then multiplied,
// then, with a cap c, c tanh(logit / c).
struct VocabularyProduct {
  Variable x;            // [s, b, h], [s/tp, b, h] with sequence parallelism
  Variable weight;       // [v/tp, h]
  Variable bias = {};    // [v/tp]; may be undefined
  float multiplier = 1;  // 1: none
  float cap = 0;         // 0: none
};
Variable logits_of(const VocabularyProduct& product, const TensorParallel& tp);

// The targets of a microbatch, on any device.
struct LossTargets {
  Tensor labels;           // [b, s] int64; negative: no target
  Tensor loss_mask;        // [b, s] fp32
  Tensor divisor = {};     // [] fp32; undefined: max(sum(loss_mask), 1)
  int64_t num_labels = 0;  // later columns of the logits are padding; 0: none are
  float label_smoothing = 0;
};

// Maximum bytes of the logits of a piece.
inline constexpr int64_t kMaxLogitsBytes = int64_t{512} << 20;

// masked_mean(cross_entropy(logits)), the mean loss of a microbatch, [] fp32.
//
// `seed` [] fp32 is the tensor that backward() will start with at this loss. Then only a piece of
// the logits exists at a time: the forward pass makes its loss and its gradient, and adds its part
// to the gradients of x, weight and bias. Only the gradient of x is saved. So main gradients change
// in the forward pass, also if no backward pass follows. Throws Error if backward() starts with
// another tensor.
//
// Without a seed, in grad mode, all logits exist. Without gradients there are pieces, too.
//
// Ranks gather four numbers of each token, once for each piece, and sum the gradient of x.
Variable vocabulary_loss(const VocabularyProduct& product, const LossTargets& targets,
                         const TensorParallel& tp, const Tensor& seed = {},
                         int64_t max_logits_bytes = kMaxLogitsBytes);

// Positions of a piece of logits [s, b, columns]: pieces are about equal, and have a multiple of
// 128 rows if there are several.
int64_t positions_of_piece(int64_t s, int64_t b, int64_t columns, DType dtype,
                           int64_t max_logits_bytes = kMaxLogitsBytes);

}  // namespace megatron
