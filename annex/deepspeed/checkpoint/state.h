#pragma once

#include <map>
#include <string>

#include "annex/deepspeed/checkpoint/files.h"
#include "megatron/core/arg_map.h"
#include "megatron/formats/stored_tensor.h"
#include "megatron/interchange/megatron/files.h"

// The optimizer's state of a model-parallel rank in a checkpoint of DeepSpeed.
//
// Stages 1 and 2 of ZeRO concatenate the parameters of a group in a flat buffer and partition the
// buffer: a parameter may be in the files of several data-parallel ranks. Stage 3 partitions each
// parameter: of n elements on N ranks, rank r has ceil(n / N) from r * ceil(n / N) on, and its flat
// buffer concatenates the padded parts of all parameters. Without ZeRO the state is in the file of
// the model states, by parameter.
namespace megatron {

// One kind of state of a parameter, complete.
struct ShardedState {
  DType dtype = DType::kFloat32;
  int64_t numel = 0;
  ElementReader read;  // gives them as one axis
};

struct DeepSpeedState {
  // By kind (kMainParamSection, "exp_avg", ...), then DeepSpeed's name of the parameter.
  std::map<std::string, std::map<std::string, ShardedState>> kinds;
  std::map<std::string, Shape> shapes;    // of the parameters, if the files have them
  std::map<std::string, ArgMap> scalars;  // see CheckpointState
};

// The state in a rank's optimizer files, read on demand. Throws FormatError, with the file, for
// buffers that do not fit the parameters; Unsupported for groups with different numbers of updates.
// REQUIRES: the files exist.
DeepSpeedState read_zero_state(const DeepSpeedRank& rank);

// The state of a run without ZeRO, which is beside the weights; empty if there is none, or if it
// does not name its parameters.
DeepSpeedState read_plain_state(const DeepSpeedRank& rank);

// The loss scale in DeepSpeed's optimizer state, as state of this program; empty for a constant
// one.
ArgMap loss_scale_of(PyValue state);

}  // namespace megatron
