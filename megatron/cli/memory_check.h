#pragma once

#include <string>
#include <vector>

#include "megatron/models/gpt/gpt_plan.h"
#include "megatron/settings/training_args.h"

// What a training run will need, before anything is allocated.
namespace megatron::cli {

// The run that resolved args with padded_vocab_size describe. Borrows from `args`.
PlannedTraining planned_training(const TrainingArgs& args, DeviceType device);

// A few lines for the log: bytes by category, and when the peak is.
std::vector<std::string> summary_of(const RankMemory& memory);

// Changes of the command line, each enough by itself to need at most `bytes`, computed by the plan:
// "--micro-batch-size 4 (needs 61.20 GiB)". Empty when none is known.
std::vector<std::string> remedies(const TrainingArgs& args, DeviceType device, int64_t bytes);

// Throws ConfigError with the remedies when the plan needs more than `free_bytes`. Nothing when
// free_bytes is below 0 (unknown) or --skip-memory-check was given.
void expect_to_fit(const TrainingArgs& args, Device device, int64_t free_bytes);

// "12.34 GiB", "56.7 MiB"
std::string size_text(int64_t bytes);

}  // namespace megatron::cli
