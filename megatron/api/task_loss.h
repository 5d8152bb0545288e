#pragma once

#include "megatron/models/model.h"
#include "megatron/task.h"
#include "megatron/training/train_task.h"

// The parts of a Task that are alike for all kinds of models.
namespace megatron::api {

// The tokens of a microbatch, undefined where they are not known, and its split.
struct RunningMicrobatch {
  megatron::Tensor tokens;
  Split split = Split::kTrain;
};

// The loss of a task of its own, on the chunk with the head. REQUIRES: it has loss_inputs().
MicrobatchOutput task_loss(const Task& changes, const megatron::Model& model,
                           const Variable& hidden, const TokenTargets& targets,
                           const RunningMicrobatch& running);

// Task::adjust_parameter().
void change_parameter(const Task& changes, OptimizedParameter& parameter);

}  // namespace megatron::api
