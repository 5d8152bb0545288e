#include "megatron/kernels/router.h"

#include "megatron/kernels/on_cpu_alone.h"

namespace megatron::kernels {
void choose_experts(TensorView ids, ConstView logits, ConstView bias, const RouterOptions& options,
                    Stream stream) {
  on_cpu_alone<cpu::choose_experts>(stream, ids, logits, bias, options);
}

void choose_balanced_experts(TensorView ids, ConstView logits, Stream stream) {
  on_cpu_alone<cpu::choose_balanced_experts>(stream, ids, logits);
}

void balancing_quantiles(TensorView quantiles, ConstView logits, ConstView bias, int64_t topk,
                         Stream stream) {
  on_cpu_alone<cpu::balancing_quantiles>(stream, quantiles, logits, bias, topk);
}

void drop_tokens(TensorView ids, ConstView weights, int64_t num_experts, int64_t capacity,
                 bool by_position, Stream stream) {
  on_cpu_alone<cpu::drop_tokens>(stream, ids, weights, num_experts, capacity, by_position);
}

void expert_weights_forward(TensorView weights, ConstView logits, ConstView ids,
                            const RouterOptions& options, Stream stream) {
  on_cpu_alone<cpu::expert_weights_forward>(stream, weights, logits, ids, options);
}

void expert_weights_backward(TensorView dlogits, ConstView dweights, ConstView logits,
                             ConstView ids, const RouterOptions& options, Stream stream) {
  on_cpu_alone<cpu::expert_weights_backward>(stream, dlogits, dweights, logits, ids, options);
}

void router_scores_forward(TensorView scores, ConstView logits, RouterScore score, Stream stream) {
  on_cpu_alone<cpu::router_scores_forward>(stream, scores, logits, score);
}

void router_scores_backward(TensorView dlogits, ConstView dy, ConstView weights, ConstView logits,
                            RouterScore score, float alpha, Stream stream) {
  on_cpu_alone<cpu::router_scores_backward>(stream, dlogits, dy, weights, logits, score, alpha);
}

void sum_by_group(TensorView sums, ConstView x, Stream stream) {
  on_cpu_alone<cpu::sum_by_group>(stream, sums, x);
}

void count_by_group(TensorView counts, ConstView ids, Stream stream) {
  on_cpu_alone<cpu::count_by_group>(stream, counts, ids);
}

void jitter(TensorView y, ConstView x, ConstView noise, Stream stream) {
  on_cpu_alone<cpu::jitter>(stream, y, x, noise);
}

void sum_of_products(TensorView y, ConstView x, ConstView z, float alpha, Stream stream) {
  on_cpu_alone<cpu::sum_of_products>(stream, y, x, z, alpha);
}

void squared_log_sums_forward(TensorView y, ConstView logits, float alpha, Stream stream) {
  on_cpu_alone<cpu::squared_log_sums_forward>(stream, y, logits, alpha);
}

void squared_log_sums_backward(TensorView dlogits, ConstView dy, ConstView logits, float alpha,
                               Stream stream) {
  on_cpu_alone<cpu::squared_log_sums_backward>(stream, dlogits, dy, logits, alpha);
}

}  // namespace megatron::kernels
