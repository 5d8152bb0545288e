#pragma once

#include "megatron/autograd/variable.h"
#include "megatron/kernels/router.h"

// The differentiable parts of a router of T tokens to E experts (kernels/router.h).
namespace megatron {

using kernels::RouterOptions;

// x weight^T + bias in fp64.
//   x [T, h], weight [E, h], bias [E] fp32 | fp16 | bf16; bias may be undefined   -> [T, E] fp64
Variable double_logits(const Variable& x, const Variable& weight, const Variable& bias);

// The weights of the chosen experts.
//   logits [T, E] fp32 | fp64   ids [T, k] int32   -> [T, k] fp32
Variable expert_weights(const Variable& logits, const Tensor& ids, const RouterOptions& options);

// factor * the sum of counts[t % groups] over the scores of all experts (router_scores_forward()).
//   logits [T, E] fp32   counts [groups, E] fp32   -> fp32 []
Variable balancing_loss(const Variable& logits, const Tensor& counts, RouterScore score,
                        double factor);

// factor * the sum of (log sum exp logits[t])^2.   logits [T, E] fp32 | fp64   -> fp32 []
Variable squared_log_sum_loss(const Variable& logits, double factor);

// x (1 + noise), rounded to the dtype of x.   x [.., h]   noise [.., h] fp32
Variable jittered(const Variable& x, const Tensor& noise);

}  // namespace megatron
