#pragma once

#include <vector>

#include "megatron/comm/group.h"
#include "megatron/device/random.h"
#include "megatron/device/stream.h"
#include "megatron/nn/module.h"
#include "megatron/optim/flat_parameters.h"
#include "megatron/optim/gradient_reduction.h"
#include "megatron/optim/optimizer.h"
#include "megatron/optim/parameter_scheduler.h"
#include "megatron/parallel/fp8_scaling.h"
#include "megatron/parallel/parallel_context.h"
#include "megatron/training/microbatch_calculator.h"
#include "megatron/training/progress.h"
#include "megatron/training/run_config.h"
#include "megatron/training/train_task.h"
#include "megatron/transformer/router.h"

namespace megatron {

// One rank's part of a training run: its chunks of the model, their optimizer, and the position of
// the run. A checkpoint saves it; the Trainer changes it.
struct TrainingState {
  // Builds the task's model and initializes it, except with --no-initialization. `config` is
  // resolved. Every rank of `world` calls it; the task must outlive the state.
  TrainingState(const RunConfig& config, TrainTask& task, const comm::Group& world, Stream on);
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  const ParallelContext parallel;
  const Stream stream;  // of the model
  RandomState random;
  // This rank's chunks of the model, in the order of the layers: one, or several in an interleaved
  // pipeline.
  const std::vector<const Module*> chunks;
  FlatParameters parameters;
  Fp8Scaling fp8;
  Routers routers;  // of experts
  GradientReduction gradients;
  Optimizer optimizer;
  ParameterScheduler scheduler;
  MicrobatchCalculator microbatches;
  Progress progress = {};
};

}  // namespace megatron
