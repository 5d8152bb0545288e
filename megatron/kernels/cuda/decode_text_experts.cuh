#pragma once

#include "megatron/kernels/cuda/decode_text_common.cuh"

// The choice of experts in the kernel decode_text. Every block makes the same choice from the
// logits of all.
namespace megatron::kernels::cuda::text {

template <class T, int kLane>
__device__ __forceinline__ void choose_of_lanes(const Parameters& p, ChosenExperts& chosen,
                                                const float* expert_bias, uint32_t tag) {
  const int lane = lane_of_thread(), experts = static_cast<int>(p.shape.experts);
  const int k = static_cast<int>(p.shape.topk);
  TaggedNumber found[kLane];
  bool have_all = false;
#pragma unroll
  for (int i = 0; i < kLane; ++i) {
    const int e = i * kWarp + lane;
    found[i] = {0, tag};
    if (e < experts) found[i] = poll(router_logit_at(p, e));
  }
  while (!have_all) {
    have_all = true;
#pragma unroll
    for (int i = 0; i < kLane; ++i) {
      if (found[i].tag == tag) continue;
      have_all = false;
      found[i] = poll(router_logit_at(p, i * kWarp + lane));
    }
  }
#pragma unroll
  for (int i = 0; i < kLane; ++i) chosen.logits[i * kWarp + lane] = __uint_as_float(found[i].value);
  __syncwarp();
  const ExpertRow<kLane> row(chosen.logits, experts);
  ChoiceRule rule = p.choice;
  rule.bias = expert_bias;
  int id = -1;  // lane j has choice j
  rule.choose(row, k, [&](int j, int expert) {
    if (lane == j) id = expert;
  });
  const float weight = weight_of<float>(p.weights, row, id >= 0 ? chosen.logits[id] : kNever, id);
  if (lane < k) {
    chosen.ids[lane] = id;
    chosen.weights[lane] = p.shape.rounds_router ? rounded<T>(weight) : weight;
  }
  __syncwarp();
}

// Waits for the logits of a layer's router and stores the choice. The producer warp calls it.
template <class T>
__device__ __forceinline__ void choose_experts(const Parameters& p, const SharedMemory& shared,
                                               const float* expert_bias, int layer, uint32_t tag) {
  // It does not poll before the router's input has arrived.
  barrier::wait(shared_address(shared.router_started), static_cast<uint32_t>(layer) & 1);
  if (p.shape.experts <= 2 * kWarp) {
    choose_of_lanes<T, 2>(p, *shared.chosen, expert_bias, tag);
  } else {
    choose_of_lanes<T, kMostExperts / kWarp>(p, *shared.chosen, expert_bias, tag);
  }
}

}  // namespace megatron::kernels::cuda::text
