#pragma once

#include <functional>
#include <span>

#include "megatron/autograd/variable.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {

// What a stage does in each step; the executor knows no model.
struct StageWork {
  // The forward pass of a chunk on a microbatch. `activations` come from the chunk before and are
  // undefined where the model begins. Returns the chunk's activations, or the loss, a scalar, where
  // the model ends. In grad mode when a backward pass follows.
  std::function<Variable(const PipelineStep& step, const Variable& activations)> forward;
  // Runs the graph from what forward() returned. `gradient` comes from the chunk after and is
  // undefined for a loss. Null when the plan has no backward pass.
  std::function<void(const Variable& output, const Tensor& gradient)> backward;
};

// What travels between chunks: the same for every microbatch.
struct ActivationType {
  Shape shape;  // [s, b, h] of a rank
  DType dtype = DType::kFloat32;
  Stream stream;
};

// Opens the lanes that run_pipeline() will use, by a first message through each. On a GPU the first
// message makes the host wait for the other end; in the middle of a plan two stages could wait for
// each other so. Every stage calls it once; is_ring: for an interleaved schedule.
void open_links(const PipelineLinks& links, int stage, int stages, bool is_ring, Stream stream);

// Runs one stage's steps in their order. Receives what the next step needs while a step computes;
// on a GPU sends and receives run beside the computation. Activations that were sent are freed but
// for what their graph has captured. With one stage and one chunk nothing is moved.
//
// Every stage of the pipeline calls it with the plan of its own place in `shape`.
void run_pipeline(std::span<const PipelineStep> steps, const PipelineShape& shape,
                  const PipelineLinks& links, const ActivationType& type, const StageWork& work);

}  // namespace megatron
