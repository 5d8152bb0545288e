#pragma once

#include <string>

#include "megatron/core/error.h"
#include "megatron/training/training_state.h"

namespace megatron {

// Ranks have different bits of what should be copies: another start from the last checkpoint may
// go well.
class ReplicaError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

// Compares all that several ranks have, by hashes (kernels/hash_term.h): the model's tensors and
// the state of the optimizer on data-parallel ranks, of what tensor-parallel ranks have whole, and
// of what pipeline stages share. What data-parallel ranks divide, one rank alone has, and nothing
// is compared.
//
// Reads each tensor once, and waits for the device. The ranks exchange one word for each group; if
// these differ, one for each tensor. Every rank of the world calls it, between iterations. Throws
// ReplicaError on every rank, with all tensors and the ranks that have them.
void expect_equal_replicas(TrainingState& state);

}  // namespace megatron
