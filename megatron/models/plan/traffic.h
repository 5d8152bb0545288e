#pragma once

#include <cstdint>
#include <vector>

#include "megatron/models/plan/dry_iteration.h"
#include "megatron/models/plan/planned_training.h"
#include "megatron/training/step_estimate.h"

namespace megatron {

// Bytes that a rank sends in an iteration, with rings: an all-reduce of n bytes over d ranks sends
// 2 n (d - 1) / d, a reduce-scatter or an all-gather half of it.
struct Traffic {
  int64_t data_parallel = 0;      // gradients, and parameters with the distributed optimizer
  int64_t across_instances = 0;   // sums of a rank's share of gradients in an instance
  int64_t tensor_parallel = 0;    // activations of the layers
  int64_t expert_parallel = 0;    // tokens and the sums of their experts, and their gradients
  int64_t context_parallel = 0;   // keys and values of the layers, and their gradients
  int64_t pipeline_parallel = 0;  // activations between stages
  int64_t transfers = 0;          // collectives of tensor_parallel; an all-reduce counts as two

  int64_t total() const {
    return data_parallel + across_instances + tensor_parallel + expert_parallel + context_parallel +
           pipeline_parallel;
  }
};
// `dry` is an iteration of a rank of the stage.
Traffic traffic(const PlannedTraining& training, int64_t stage, const DryIteration& dry);
// The exposed part of it, which no computation hides, with the overlaps that the flags enable:
//
//   gradients    all; with overlap_grad_reduce the bucket that closes last, but across instances
//                all if they are divided
//   parameters   all; with overlap_param_gather the bucket that the forward pass needs first
//   layers       what a product waits for. The collectives of a column-parallel layer's gradients
//                run beside its products; with tp_comm_overlap the others do, too, but the last
//                piece of an all-reduce, and if pieces are large enough (parallel/tensor/pieces.h)
//   experts      half of the tokens and of their sums, and of the gradients of the sums, if halves
//                of the tokens are large enough; all otherwise (parallel/expert_ranks.h)
//   keys         what does not travel beside attention: half of an exchange of heads; of a gather
//                the first half, and the gradients; nothing of a ring
//   stages       each message; interleaved ones travel beside the next chunk's work
Traffic exposed_traffic(const PlannedTraining& training, int64_t stage, const DryIteration& dry);
// The hidden bytes of context parallelism, and the computation that hides them.
std::vector<SentBeside> sent_beside_attention(const PlannedTraining& training, int64_t stage);

}  // namespace megatron
