#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/device/allocator.h"
#include "megatron/models/plan/planned_training.h"
#include "megatron/transformer/layer_memory.h"

// What training a model takes of one rank's memory, computed from the configs alone:
// nothing is allocated and no device is asked.
namespace megatron {

struct RankMemory {
  int64_t num_parameters = 0;  // on this rank
  int64_t num_layers = 0;
  double microbatches_in_flight = 1;  // that hold activations of all the rank's layers
  std::vector<PlannedRow> rows;       // what exists when most is in use
  std::string peak_at;                // the moment: "loss", "backward of layer 23"
  std::vector<MemoryRow> host_rows;   // what waits in host memory, besides the rows

  int64_t bytes(MemoryCategory category) const;
  int64_t total_bytes() const;  // of the device
  int64_t host_bytes() const;
};

// A rank of a pipeline stage, counted from 0.
RankMemory rank_memory(const PlannedTraining& training, int64_t stage);
// The rank that needs the most.
RankMemory largest_rank_memory(const PlannedTraining& training);

// Of the whole model, tied embeddings once.
int64_t num_model_parameters(const TransformerConfig& config);

// The largest micro-batch size, at most `at_most`, with which the largest rank stays within
// `bytes`; 0 when none does. The other numbers stay.
int64_t largest_micro_batch_size(PlannedTraining training, int64_t bytes, int64_t at_most);

// bubble_fraction() of the pipeline.
double pipeline_bubble(const PlannedTraining& training);

}  // namespace megatron
