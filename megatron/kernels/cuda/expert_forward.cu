#include "megatron/kernels/cuda/expert_forward.cuh"

#include "megatron/kernels/cuda/capability.h"

namespace megatron::kernels::cuda {
namespace {

using experts::Problem;

void launch_experts(void (*kernel)(Problem), int64_t items, int64_t blocks_at_once, int warps,
                    const Problem& problem, Stream stream) {
  launch_overlapped(
      kernel,
      {.grid = dim3(blocks_for(items, 1, blocks_at_once * multiprocessors(stream.device))),
       .block = dim3(static_cast<unsigned>(warps * kWarp)),
       .overlaps = has_clusters(reinterpret_cast<const void*>(kernel), stream.device)},
      stream, problem);
}

}  // namespace

bool has_expert_forward(ConstView x, ConstView ids, const ExpertLayers& layers, Stream) {
  const bool has_type = x.dtype == DType::kBFloat16 || x.dtype == DType::kFloat16;
  const int64_t hidden = layers.fc2.size(1), inner = layers.fc2.size(2);
  return has_type && ids.numel() > 0 && ids.numel() <= kMaxForwardSlots &&
         layers.fc2.size(0) <= experts::kMostExperts && hidden % experts::kDepths == 0 &&
         inner % experts::kDepths == 0 && is_aligned(x.data) && is_aligned(layers.fc1.data) &&
         is_aligned(layers.fc2.data);
}

void expert_forward(TensorView y, TensorView inside, ConstView x, ConstView ids, ConstView weights,
                    const ExpertLayers& layers, Stream stream) {
  const Problem problem = experts::problem_of(y, inside, x, ids, weights, layers);
  const experts::Kernels kernels = x.dtype == DType::kBFloat16
                                       ? experts::kernels_of<BFloat16>(problem)
                                       : experts::kernels_of<Float16>(problem);
  const int64_t most_experts = std::min(problem.tokens * problem.k, problem.experts);
  launch_experts(kernels.up, most_experts * (problem.inner / experts::kRows), kernels.up_blocks,
                 experts::kUpWarps, problem, stream);
  launch_experts(kernels.down, problem.hidden / experts::kRows, 1, experts::kDownWarps, problem,
                 stream);
}

}  // namespace megatron::kernels::cuda
