#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/device/dry_memory.h"
#include "megatron/models/plan/dry_iteration.h"
#include "megatron/models/plan/planned_training.h"

// Memory plan of one rank's training: the model itself trains on a dry device
// (models/plan/dry_iteration.h). Nothing is allocated and no device is asked.
namespace megatron {

struct RankMemory {
  int64_t num_parameters = 0;  // on this rank
  int64_t num_layers = 0;
  double microbatches_in_flight = 1;  // that hold activations of all the rank's layers
  std::vector<MemoryUse> rows;        // memory in use at the peak
  std::string peak_at;                // the moment: "loss", "backward of layer 23"
  std::vector<MemoryUse> host_rows;   // host memory, in addition to the rows

  int64_t bytes(MemoryCategory category) const;
  int64_t total_bytes() const;  // of the device
  int64_t host_bytes() const;
};

// A rank of a pipeline stage, counted from 0, of which `dry` is an iteration.
RankMemory rank_memory(const PlannedTraining& training, int64_t stage, const DryIteration& dry);
inline RankMemory rank_memory(const PlannedTraining& training, int64_t stage) {
  return rank_memory(training, stage, dry_iteration(training, stage));
}
// The rank that needs the most.
RankMemory largest_rank_memory(const PlannedTraining& training);

// Parameters of the whole model; tied embeddings count once.
int64_t num_model_parameters(const TransformerConfig& config);

}  // namespace megatron
