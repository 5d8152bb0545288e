#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "megatron/device/allocator.h"
#include "megatron/optim/config.h"
#include "megatron/parallel/config.h"
#include "megatron/transformer/config.h"
#include "megatron/transformer/layer_memory.h"

// What training a GPT or a BERT takes of one rank's memory, computed from the configs alone:
// nothing is allocated and no device is asked.
namespace megatron {

struct PlannedTraining {
  const TransformerConfig& transformer;  // resolved, with padded_vocab_size
  const ParallelConfig& parallel;        // resolved
  const OptimizerConfig& optimizer;
  int64_t micro_batch_size = 1;
  int64_t num_microbatches = 1;  // of an iteration
  DeviceType device = DeviceType::kCpu;
  bool is_deterministic = false;  // --deterministic-mode
};

struct PlannedRow {
  MemoryCategory category;
  std::string what;
  int64_t bytes = 0;
};

struct RankMemory {
  int64_t num_parameters = 0;  // on this rank
  int64_t num_layers = 0;
  double microbatches_in_flight = 1;  // that hold activations of all the rank's layers
  std::vector<PlannedRow> rows;       // what exists when most is in use
  std::string peak_at;                // the moment: "loss", "backward of layer 23"

  int64_t bytes(MemoryCategory category) const;
  int64_t total_bytes() const;
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

// Bytes that a rank sends in an iteration, with rings: an all-reduce of n bytes over d ranks sends
// 2 n (d - 1) / d, a reduce-scatter or an all-gather half of it.
struct Traffic {
  int64_t data_parallel = 0;      // gradients, and parameters with the distributed optimizer
  int64_t tensor_parallel = 0;    // activations of the layers
  int64_t context_parallel = 0;   // keys and values of the layers, and their gradients
  int64_t pipeline_parallel = 0;  // activations between stages
  int64_t transfers = 0;          // how many collectives tensor_parallel is; an all-reduce is two

  int64_t total() const {
    return data_parallel + tensor_parallel + context_parallel + pipeline_parallel;
  }
};
Traffic traffic(const PlannedTraining& training, int64_t stage);
// What of it no computation hides, with the overlaps that the flags ask for:
//
//   gradients    all; with overlap_grad_reduce the bucket that closes last
//   parameters   all; with overlap_param_gather the bucket that the forward pass needs first
//   layers       what a product waits for. The collectives of a column-parallel layer's gradients
//                run beside its products; with tp_comm_overlap the others do, too, but the last
//                piece of an all-reduce, and if pieces are large enough (parallel/tensor/pieces.h)
//   keys         all of context parallelism, of which the second half of a gather is hidden in part
//   stages       each message; interleaved ones travel beside the next chunk's work
Traffic exposed_traffic(const PlannedTraining& training, int64_t stage);

}  // namespace megatron
