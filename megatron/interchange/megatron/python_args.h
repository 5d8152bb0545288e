#pragma once

#include "megatron/core/arg_map.h"
#include "megatron/formats/python_value.h"

// The argument namespaces in checkpoints of the Megatron family.
namespace megatron {

// The attributes of a namespace, or the entries of a dictionary, that are plain values; others
// (enumerations, objects) are left out.
ArgMap plain_args(PyValue names);

// The same with what later and earlier versions call by other names under that of core_r0.5.0.
ArgMap megatron_args(PyValue names);

// The state of the schedule of learning rates, with the names of core_r0.5.0. Older versions do not
// schedule the weight decay; it is that of `settings` then.
ArgMap scheduler_args(PyValue scheduler, const ArgMap& settings);

}  // namespace megatron
