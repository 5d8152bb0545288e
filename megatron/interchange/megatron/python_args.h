#pragma once

#include "megatron/core/arg_map.h"
#include "megatron/formats/python_value.h"

// The argument namespaces in checkpoints of the Megatron family.
namespace megatron {

// The attributes of a namespace, or the entries of a dictionary, that are plain values; others
// (enumerations, objects) are left out.
ArgMap plain_args(PyValue names);

// The same, with names of earlier and later versions replaced by those of core_r0.5.0.
ArgMap megatron_args(PyValue names);

// The state of the learning-rate schedule, with the names of core_r0.5.0. Older versions do not
// schedule the weight decay, which then comes from `settings`.
ArgMap scheduler_args(PyValue scheduler, const ArgMap& settings);

}  // namespace megatron
