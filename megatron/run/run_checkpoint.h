#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "megatron/checkpoint/local_checkpoints.h"
#include "megatron/interchange/checkpoint_source.h"
#include "megatron/training/run_config.h"
#include "megatron/training/run_saver.h"
#include "megatron/training/train_task.h"
#include "megatron/training/training_state.h"

namespace megatron {

// The saver of --save, in the background with --async-save; null without --save. It never deletes
// the `foreign` iterations, which belong to other runs. The other arguments must outlive it.
std::unique_ptr<RunSaver> make_run_saver(const RunConfig& config, TrainingState& state,
                                         const TrainTask& task,
                                         const std::vector<int64_t>& foreign = {});

// --non-persistent-ckpt-type local: saves in `local`, all of what the run would load. The arguments
// must outlive it.
std::unique_ptr<RunSaver> make_local_saver(const RunConfig& config, TrainingState& state,
                                           const TrainTask& task, LocalCheckpoints& local);

// Restores a newly built run from the newest local checkpoint of the same --save and layout. False
// if there is none of an iteration after `saved`. Every rank calls it. Throws like load_run().
bool load_local(const RunConfig& config, TrainingState& run, LocalCheckpoints& local,
                int64_t saved);

// The part of --load that a run uses: with --no-load-optim and --finetune only the weights.
Parts wanted_parts(const CheckpointConfig& config);

// Restores a newly built run from the source; Megatron-LM's rules for --finetune, --no-load-optim
// and the scheduler flags. Throws ConfigError for every setting that contradicts the source,
// FormatError for tensors that do not fit, or that are not those that were saved.
void load_run(const RunConfig& config, TrainingState& run, const CheckpointSource& source);

// Fills the model with the weights of a checkpoint of its kind, which may also have weights of
// other heads. Parameters for which `is_new` holds keep their values. Throws FormatError for
// tensors that are missing or do not fit.
void load_weights(const RunConfig& config, TrainingState& run, const CheckpointContents& contents,
                  const std::function<bool(std::string_view)>& is_new);

}  // namespace megatron
