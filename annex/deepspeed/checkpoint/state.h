#pragma once

#include <map>
#include <string>

#include "annex/deepspeed/checkpoint/files.h"
#include "megatron/core/arg_map.h"
#include "megatron/formats/stored_tensor.h"
#include "megatron/interchange/megatron/files.h"

// The optimizer's state of a model-parallel rank in a checkpoint of DeepSpeed.
//
// Stages 1 and 2 of ZeRO lay the parameters of a group one after another into a flat buffer and cut
// the buffer: a parameter may be in the files of several data-parallel ranks. Stage 3 cuts every
// parameter on its own: of n elements on N ranks, rank r has ceil(n / N) from r * ceil(n / N) on,
// and its flat buffer is the parts of all parameters, with their padding. Without ZeRO the state is
// in the file of the model states, by parameter.
namespace megatron {

// All elements of a parameter's state of one kind.
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

// The state in a rank's optimizer files, to be read on demand. Throws FormatError, with the file,
// for buffers that do not fit the parameters; Unsupported for groups that were not updated
// together. REQUIRES: there are such files.
DeepSpeedState read_zero_state(const DeepSpeedRank& rank);

// The state beside the weights of a run without ZeRO; empty if there is none, or of a form that
// does not say which parameter it is of.
DeepSpeedState read_plain_state(const DeepSpeedRank& rank);

// The scale of the loss in the state of DeepSpeed's optimizer, as that of a run of this program;
// empty for a constant one.
ArgMap loss_scale_of(PyValue state);

}  // namespace megatron
