#pragma once

#include <cstdint>
#include <vector>

#include "megatron/core/shape.h"
#include "megatron/device/dry_memory.h"
#include "megatron/models/plan/planned_training.h"

namespace megatron {

// A rank's part of the matrix of a layer.
struct LayerMatrix {
  Shape shape;
  std::vector<int64_t> row_parts;  // see ParameterInfo
};

// Memory that a dry device counted in an iteration, and sizes of the rank.
struct DryIteration {
  MemoryPeak memory;
  MemoryPeak host_memory;
  MemoryStats stats;  // of the device's allocator, whose peaks are those of the iteration
  int64_t num_parameters = 0;
  int64_t num_trained = 0;                 // elements of parameters that are trained
  int64_t num_flat = 0;                    // the same with the padding of flat buffers
  int64_t num_in_fp8 = 0;                  // of these, weights that ranks gather in FP8
  int64_t num_in_experts = 0;              // of num_flat, those of a mixture's experts
  std::vector<LayerMatrix> matrices = {};  // trained ones, which --optimizer muon updates
};

// Runs an iteration of a rank of a pipeline stage on a dry device, with the model, the schedule and
// the optimizer of the run. It is the rank of the stage that needs the most memory: the last of its
// context-parallel group, whose first chunk attends to the most keys. Runs microbatches until the
// number in flight no longer grows.
DryIteration dry_iteration(const PlannedTraining& training, int64_t stage);

}  // namespace megatron
