#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/models/plan/planned_training.h"

namespace megatron {

// The activations of a stage, at the moment at which the most of them exist.
struct ActivationMemory {
  std::vector<PlannedRow> rows;
  std::string peak_at;                // the moment: "loss", "backward of layer 23"
  double microbatches_in_flight = 1;  // that hold activations of all the rank's layers
  int64_t workspace = 0;              // scratch memory of the kernel that needs most
  int64_t inputs_on_host = 0;         // of recomputed layers, in host memory
};
ActivationMemory activation_memory(const PlannedTraining& t, int64_t stage);

}  // namespace megatron
