#pragma once

#include <string>

#include "megatron/core/error.h"
#include "megatron/training/training_state.h"

namespace megatron {

// Copies differ between ranks; a restart from the last checkpoint may succeed.
class ReplicaError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

// Compares all replicated tensors by hashes (kernels/hash_term.h): the model and the optimizer
// state on data-parallel ranks, unsharded tensors on tensor-parallel ranks, and tied parameters of
// pipeline stages. Tensors that data-parallel ranks shard have no copies to compare.
//
// Reads each tensor once, and waits for the device. The ranks exchange one word for each group; if
// these differ, one for each tensor. Every rank of the world calls it, between iterations. Throws
// ReplicaError on every rank, with all tensors and the ranks that have them.
void expect_equal_replicas(TrainingState& state);

}  // namespace megatron
