#pragma once

#include <functional>
#include <span>
#include <vector>

#include "megatron/autograd/delayed_gradients.h"
#include "megatron/autograd/variable.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/parallel/pipeline/boundary.h"
#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {

// Result of a chunk's forward pass on a microbatch.
struct ChunkOutput {
  Activations activations;            // for the next chunk; empty where the model ends
  std::vector<Variable> losses = {};  // scalars to differentiate; any chunk may have some
};

// The work of a stage in each step; the executor does not depend on a model.
struct StageWork {
  // Runs the forward pass of a chunk on a microbatch. `activations` come from the chunk before and
  // are empty where the model begins. In grad mode when a backward pass follows.
  std::function<ChunkOutput(const PipelineStep& step, const Activations& activations)> forward;
  // Runs the graph from what forward() returned. `gradients` are those of the output's activations,
  // from the chunk after; undefined for one that needs none. Null when the plan has no backward
  // pass.
  std::function<void(const ChunkOutput& output, const Grads& gradients)> backward;
  // Runs a weight pass: what backward() left for later. Null when the plan has none.
  std::function<void(DelayedGradients& gradients)> weight = {};
};

// The backward pass of a chunk: from its activations with `gradients`, parallel to them, and from
// each loss with `seed` [].
void run_backward(const ChunkOutput& output, const Grads& gradients, const Tensor& seed);

// Connects the groups that run_pipeline() uses, by a first message through each. On a GPU the first
// message blocks the host until the other end is ready, which could deadlock two stages in the
// middle of a plan. Every stage calls it once; is_ring: for an interleaved schedule.
void open_links(const PipelineLinks& links, int stage, int stages, bool is_ring, Stream stream);

// Runs one stage's steps in their order. Receives what the next step needs while a step computes;
// on a GPU sends and receives run beside the computation. Activations that were sent are freed,
// except for what their graph has captured. With one stage and one chunk there are no transfers;
// with overlaps_microbatches the steps of two microbatches then take turns (core/turns.h), each in
// its order.
//
// Every stage of the pipeline calls it with the plan of its own place in `shape` and the boundary
// of each of its chunks. `stream` is that of the model.
void run_pipeline(std::span<const PipelineStep> steps, const PipelineShape& shape,
                  const PipelineLinks& links, std::span<const ChunkBoundary> boundaries,
                  Stream stream, const StageWork& work);

}  // namespace megatron
