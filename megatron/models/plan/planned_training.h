#pragma once

#include <cstdint>

#include "megatron/device/device.h"
#include "megatron/optim/config.h"
#include "megatron/parallel/config.h"
#include "megatron/transformer/config.h"

namespace megatron {

// The training that a plan is about.
struct PlannedTraining {
  const TransformerConfig& transformer;  // resolved, with padded_vocab_size
  const ParallelConfig& parallel;        // resolved
  const OptimizerConfig& optimizer;
  int64_t micro_batch_size = 1;
  int64_t num_microbatches = 1;  // of an iteration
  DeviceType device = DeviceType::kCpu;
  bool is_deterministic = false;  // --deterministic-mode

  int64_t num_stages() const { return parallel.pipeline_model_parallel_size; }
  bool divides_gradients() const { return parallel.zero_stage >= 2 && num_shards(parallel) > 1; }
  bool divides_parameters() const { return parallel.zero_stage >= 3 && num_shards(parallel) > 1; }
};

}  // namespace megatron
