#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "megatron/core/arg_map.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

// A rectangle of a named tensor: the whole, or a rank's shard. `data` is a handle, so neither
// saving nor loading copies the model.
struct CheckpointTensor {
  std::string name;
  Tensor data;
  Shape whole;                  // the shape of the whole tensor
  std::vector<int64_t> offset;  // of data's first element in it, an index per axis
};

CheckpointTensor whole_tensor(std::string name, Tensor data);

// The contents of a checkpoint. Names of tensors are those of parameters.
struct CheckpointState {
  int64_t iteration = 0;
  int64_t consumed_train_samples = 0;
  int64_t consumed_valid_samples = 0;

  std::vector<CheckpointTensor> model;
  // By the optimizer's names of kinds of state: "main_param", "exp_avg", ... Empty if the
  // optimizer's state is not saved or not wanted.
  std::map<std::string, std::vector<CheckpointTensor>> optimizer;

  // Numbers and texts by their owner: "opt_param_scheduler", "grad_scaler", "rng", "tokenizer", ...
  std::map<std::string, ArgMap> scalars;
  // The settings of the run.
  ArgMap args;
};

}  // namespace megatron
