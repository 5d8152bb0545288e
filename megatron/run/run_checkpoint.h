#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "megatron/interchange/checkpoint_source.h"
#include "megatron/training/run_config.h"
#include "megatron/training/run_saver.h"
#include "megatron/training/train_task.h"
#include "megatron/training/training_state.h"

namespace megatron {

// The saver of --save, in the background with --async-save; null without --save. It never deletes
// the `foreign` iterations, which belong to other runs. The other arguments must outlive it.
std::unique_ptr<RunSaver> make_run_saver(const RunConfig& config, const TrainingState& state,
                                         const TrainTask& task,
                                         const std::vector<int64_t>& foreign = {});

// Brings a newly built run to where the source stands; Megatron-LM's rules for --finetune,
// --no-load-optim and the scheduler flags. Throws ConfigError for every setting that contradicts
// the source, FormatError for tensors that do not fit.
void load_run(const RunConfig& config, TrainingState& run, const CheckpointSource& source);

}  // namespace megatron
