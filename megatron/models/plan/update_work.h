#pragma once

#include "megatron/models/plan/planned_training.h"
#include "megatron/training/step_estimate.h"

namespace megatron {

// The work of an update on a rank of a pipeline stage, with the types of the optimizer's tensors,
// the rule of each parameter, and what data-parallel ranks divide.
UpdateWork update_work(const PlannedTraining& training, int64_t stage);

// FLOPs of the products with which Muon makes a [rows, cols] matrix orthogonal: in each step
// x x^T, its square, and the product with x, from the shorter side.
double newton_schulz_flops(int64_t rows, int64_t cols, int64_t steps);

}  // namespace megatron
