#pragma once

#include "megatron/models/plan/dry_iteration.h"
#include "megatron/models/plan/planned_training.h"
#include "megatron/training/step_estimate.h"

namespace megatron {

// The work of an update on the rank of a dry iteration, with the types of the optimizer's tensors,
// the rule of each parameter, and what data-parallel ranks divide.
UpdateWork update_work(const PlannedTraining& training, const DryIteration& dry);

}  // namespace megatron
