#pragma once

#include <cstdint>
#include <string>

#include "megatron/device/allocator.h"
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
};

// Memory that exists when most is in use.
struct PlannedRow {
  MemoryCategory category;
  std::string what;
  int64_t bytes = 0;
};

}  // namespace megatron
