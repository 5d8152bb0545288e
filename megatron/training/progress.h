#pragma once

#include <cstdint>

namespace megatron {

// The position of a run. Every checkpoint has it; everything that depends on the position in
// training is derived from it.
struct Progress {
  int64_t iteration = 0;               // optimizer updates, including skipped ones
  int64_t consumed_train_samples = 0;  // samples seen, including skipped iterations
  int64_t consumed_valid_samples = 0;
  double floating_point_operations = 0;  // model FLOPs so far, without recompute
};

}  // namespace megatron
