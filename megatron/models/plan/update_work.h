#pragma once

#include "megatron/models/plan/dry_iteration.h"
#include "megatron/models/plan/planned_training.h"
#include "megatron/training/step_estimate.h"

namespace megatron {

// The work of an update on the rank of a dry iteration, from the dtypes of the optimizer's tensors,
// the update rule of each parameter, and the ZeRO stage.
UpdateWork update_work(const PlannedTraining& training, const DryIteration& dry);

}  // namespace megatron
