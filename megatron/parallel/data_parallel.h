#pragma once

#include <span>

#include "megatron/comm/group.h"
#include "megatron/tensor/tensor.h"

// Accelerate's helpers for custom losses and metrics, with their names there. `data` is
// ParallelContext::data. Every rank of the group calls them alike.
namespace megatron {

// The mean of each loss over the ranks, in one all-reduce.   losses: fp32, one element each
// result [number of losses] fp32
Tensor avg_losses_across_data_parallel_group(std::span<const Tensor> losses,
                                             const comm::Group& data);

// The x of all ranks in rank order, joined on the first axis.   x [n, ..] or [], of equal shape on
// every rank   result [size * n, ..]; [size] for a scalar
Tensor gather_across_data_parallel_groups(const Tensor& x, const comm::Group& data);

}  // namespace megatron
