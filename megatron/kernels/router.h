#pragma once

#include "megatron/core/view.h"
#include "megatron/device/device.h"
#include "megatron/kernels/router_score.h"

// The router of a mixture of experts: the choice of k of E experts for each of T tokens, and their
// weights (Shazeer et al. 2017, arXiv:1701.06538). Computes in fp32; of fp64 logits, scores alone
// are computed in fp32, and the rest in fp64. A GPU chooses at most 32 of at
// most 1024 experts.
namespace megatron::kernels {

struct RouterOptions {
  RouterScore score = RouterScore::kSoftmax;
  // Softmax over all experts before the choice; else over the chosen ones. Sigmoid and sqrtsoftplus
  // weights are divided by their sum if a token has several.
  bool pre_softmax = false;
  bool is_sinkhorn = false;  // weights: the sigmoid of one, or the softmax over all experts
  // A token chooses from the group_topk best of num_groups blocks of experts. A block's score is
  // the sum of its group_score_topk highest (DeepSeek-V2, arXiv:2405.04434, sec. 2.2.2; 2 in
  // DeepSeek-V3); 0: of its k / group_topk highest. Without blocks a token chooses from all.
  int64_t num_groups = 0;
  int64_t group_topk = 0;
  int64_t group_score_topk = 0;
  float scaling_factor = 1;  // of the weights
};

// The number of experts whose scores add up to that of their block.
constexpr int64_t terms_of_group_score(const RouterOptions& options, int64_t k) {
  return options.group_score_topk > 0 ? options.group_score_topk : k / options.group_topk;
}

// ids[t] = the k experts with the highest scores, the highest first; the first of equal ones.
//
//   ids     [T, k]  out  int32
//   logits  [T, E]  in   fp32 | fp64
//   bias    [E]     in   fp32, added to the scores of the choice alone; may be null
void choose_experts(TensorView ids, ConstView logits, ConstView bias, const RouterOptions& options,
                    Stream stream);

// The choice of d1 exp(logits) d0 with the d0 [T] and d1 [E] that give every token and every expert
// the same sum (Sinkhorn and Knopp 1967): repeats until d1 changes by less than kBalanceTolerance
// on average, at most kMaxBalanceIterations times.   ids, logits as above
void choose_balanced_experts(TensorView ids, ConstView logits, Stream stream);
inline constexpr float kBalanceTolerance = 1e-4f;
inline constexpr float kBalanceLeast = 1e-8f;  // added to every divisor
inline constexpr int kMaxBalanceIterations = 10000;

// For each expert its (T k / E + 1)-th largest logits[t] - a[t], with the (k + 1)-th largest
// logits[t] - bias as a[t]: the bias that would give each expert the same number of tokens.
//   quantiles [E] out   a [T] out   logits [T, E] in   bias [E] in   fp32
// REQUIRES: k < E.
void balancing_quantiles(TensorView quantiles, TensorView a, ConstView logits, ConstView bias,
                         int64_t topk, Stream stream);

// Takes tokens from experts that have more than `capacity`: id -1. An expert keeps the tokens with
// the largest weights, the first of equal ones, or, with by_position, the first ones.
//   ids [T, k] in, out int32   weights [T, k] in fp32
void drop_tokens(TensorView ids, ConstView weights, int64_t num_experts, int64_t capacity,
                 bool by_position, Stream stream);

// Weights of the chosen experts, and their gradient.
//
//   weights, dweights  [T, k]  fp32
//   logits, dlogits    [T, E]  fp32 | fp64; dlogits is overwritten
//   ids                [T, k]  int32, of choose_experts()
void expert_weights_forward(TensorView weights, ConstView logits, ConstView ids,
                            const RouterOptions& options, Stream stream);
void expert_weights_backward(TensorView dlogits, ConstView dweights, ConstView logits,
                             ConstView ids, const RouterOptions& options, Stream stream);

// choose_experts() and expert_weights_forward() at once, with logits of any floating-point dtype,
// to which the weights are rounded.
//   ids [T, k] out int32   weights [T, k] out fp32   logits [T, E] in   bias [E] in fp32, or null
void route_tokens(TensorView ids, TensorView weights, ConstView logits, ConstView bias,
                  const RouterOptions& options, Stream stream);

// Scores over all experts: their softmax, or sigmoids and sqrtsoftplus' divided by their sum.
//   scores [T, E] out   logits [T, E] in   fp32
void router_scores_forward(TensorView scores, ConstView logits, RouterScore score, Stream stream);
// dlogits of scores whose gradient is alpha dy weights[t % groups].
//   dlogits [T, E] out   dy [] in   weights [groups, E] in   logits [T, E] in   fp32
void router_scores_backward(TensorView dlogits, ConstView dy, ConstView weights, ConstView logits,
                            RouterScore score, float alpha, Stream stream);

// sums[t % groups] += x[t]; counts[t % groups, id] += 1 for each id of token t that is not -1.
//   sums, counts [groups, E] out, overwritten, fp32   x [T, E] in fp32   ids [T, k] in int32
void sum_by_group(TensorView sums, ConstView x, Stream stream);
void count_by_group(TensorView counts, ConstView ids, Stream stream);

// y = (1 + noise) x.   fp32, of equal shape; y may be x
void jitter(TensorView y, ConstView x, ConstView noise, Stream stream);

// y = alpha sum of x z.   y [] out   x, z [n] in   fp32
void sum_of_products(TensorView y, ConstView x, ConstView z, float alpha, Stream stream);

// y = alpha sum over t of (log sum exp logits[t])^2 (Zoph et al. 2022, arXiv:2202.08906, sec. 3.3).
//   y, dy [] fp32   logits, dlogits [T, E] fp32 | fp64
void squared_log_sums_forward(TensorView y, ConstView logits, float alpha, Stream stream);
void squared_log_sums_backward(TensorView dlogits, ConstView dy, ConstView logits, float alpha,
                               Stream stream);

namespace cpu {
decltype(kernels::choose_experts) choose_experts;
decltype(kernels::choose_balanced_experts) choose_balanced_experts;
decltype(kernels::balancing_quantiles) balancing_quantiles;
decltype(kernels::drop_tokens) drop_tokens;
decltype(kernels::expert_weights_forward) expert_weights_forward;
decltype(kernels::expert_weights_backward) expert_weights_backward;
decltype(kernels::route_tokens) route_tokens;
decltype(kernels::router_scores_forward) router_scores_forward;
decltype(kernels::router_scores_backward) router_scores_backward;
decltype(kernels::sum_by_group) sum_by_group;
decltype(kernels::count_by_group) count_by_group;
decltype(kernels::jitter) jitter;
decltype(kernels::sum_of_products) sum_of_products;
decltype(kernels::squared_log_sums_forward) squared_log_sums_forward;
decltype(kernels::squared_log_sums_backward) squared_log_sums_backward;
}  // namespace cpu

namespace cuda {
decltype(kernels::choose_experts) choose_experts;
decltype(kernels::choose_balanced_experts) choose_balanced_experts;
decltype(kernels::balancing_quantiles) balancing_quantiles;
decltype(kernels::drop_tokens) drop_tokens;
decltype(kernels::expert_weights_forward) expert_weights_forward;
decltype(kernels::expert_weights_backward) expert_weights_backward;
decltype(kernels::route_tokens) route_tokens;
decltype(kernels::router_scores_forward) router_scores_forward;
decltype(kernels::router_scores_backward) router_scores_backward;
decltype(kernels::sum_by_group) sum_by_group;
decltype(kernels::count_by_group) count_by_group;
decltype(kernels::jitter) jitter;
decltype(kernels::sum_of_products) sum_of_products;
decltype(kernels::squared_log_sums_forward) squared_log_sums_forward;
decltype(kernels::squared_log_sums_backward) squared_log_sums_backward;
}  // namespace cuda

}  // namespace megatron::kernels
