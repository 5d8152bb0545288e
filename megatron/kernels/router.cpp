#include "megatron/kernels/router.h"

#include "megatron/kernels/dispatch.h"

namespace megatron::kernels {
void choose_experts(TensorView ids, ConstView logits, ConstView bias, const RouterOptions& options,
                    Stream stream) {
  dispatch<cpu::choose_experts, cuda::choose_experts>("choose_experts", ids, logits, bias, options,
                                                      stream);
}

void choose_balanced_experts(TensorView ids, ConstView logits, Stream stream) {
  dispatch<cpu::choose_balanced_experts, cuda::choose_balanced_experts>("choose_balanced_experts",
                                                                        ids, logits, stream);
}

void balancing_quantiles(TensorView quantiles, TensorView a, ConstView logits, ConstView bias,
                         int64_t topk, Stream stream) {
  dispatch<cpu::balancing_quantiles, cuda::balancing_quantiles>("balancing_quantiles", quantiles, a,
                                                                logits, bias, topk, stream);
}

void drop_tokens(TensorView ids, ConstView weights, int64_t num_experts, int64_t capacity,
                 bool by_position, Stream stream) {
  dispatch<cpu::drop_tokens, cuda::drop_tokens>("drop_tokens", ids, weights, num_experts, capacity,
                                                by_position, stream);
}

void expert_weights_forward(TensorView weights, ConstView logits, ConstView ids,
                            const RouterOptions& options, Stream stream) {
  dispatch<cpu::expert_weights_forward, cuda::expert_weights_forward>(
      "expert_weights_forward", weights, logits, ids, options, stream);
}

void route_tokens(TensorView ids, TensorView weights, ConstView logits, ConstView bias,
                  const RouterOptions& options, Stream stream) {
  dispatch<cpu::route_tokens, cuda::route_tokens>("route_tokens", ids, weights, logits, bias,
                                                  options, stream);
}

void expert_weights_backward(TensorView dlogits, ConstView dweights, ConstView logits,
                             ConstView ids, const RouterOptions& options, Stream stream) {
  dispatch<cpu::expert_weights_backward, cuda::expert_weights_backward>(
      "expert_weights_backward", dlogits, dweights, logits, ids, options, stream);
}

void router_scores_forward(TensorView scores, ConstView logits, RouterScore score, Stream stream) {
  dispatch<cpu::router_scores_forward, cuda::router_scores_forward>("router_scores_forward", scores,
                                                                    logits, score, stream);
}

void router_scores_backward(TensorView dlogits, ConstView dy, ConstView weights, ConstView logits,
                            RouterScore score, float alpha, Stream stream) {
  dispatch<cpu::router_scores_backward, cuda::router_scores_backward>(
      "router_scores_backward", dlogits, dy, weights, logits, score, alpha, stream);
}

void sum_by_group(TensorView sums, ConstView x, Stream stream) {
  dispatch<cpu::sum_by_group, cuda::sum_by_group>("sum_by_group", sums, x, stream);
}

void count_by_group(TensorView counts, ConstView ids, Stream stream) {
  dispatch<cpu::count_by_group, cuda::count_by_group>("count_by_group", counts, ids, stream);
}

void jitter(TensorView y, ConstView x, ConstView noise, Stream stream) {
  dispatch<cpu::jitter, cuda::jitter>("jitter", y, x, noise, stream);
}

void sum_of_products(TensorView y, ConstView x, ConstView z, float alpha, Stream stream) {
  dispatch<cpu::sum_of_products, cuda::sum_of_products>("sum_of_products", y, x, z, alpha, stream);
}

void squared_log_sums_forward(TensorView y, ConstView logits, float alpha, Stream stream) {
  dispatch<cpu::squared_log_sums_forward, cuda::squared_log_sums_forward>(
      "squared_log_sums_forward", y, logits, alpha, stream);
}

void squared_log_sums_backward(TensorView dlogits, ConstView dy, ConstView logits, float alpha,
                               Stream stream) {
  dispatch<cpu::squared_log_sums_backward, cuda::squared_log_sums_backward>(
      "squared_log_sums_backward", dlogits, dy, logits, alpha, stream);
}

}  // namespace megatron::kernels
