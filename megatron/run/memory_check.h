#pragma once

#include <string>
#include <vector>

#include "megatron/models/plan/training_plan.h"
#include "megatron/training/run_config.h"

// The memory of training, computed before anything is allocated.
namespace megatron {

// The plan's view of a run. `config` is resolved, has padded_vocab_size, and must outlive the
// result.
PlannedTraining planned_training(const RunConfig& config, DeviceType device);

// Bytes of the device that a rank needs. A CPU's memory is the host's, too.
int64_t needed_bytes(const RankMemory& memory, DeviceType device);

// A few lines for the log: bytes by category, and when the peak is.
std::vector<std::string> summary_of(const RankMemory& memory);

// Changes of the config, each of which alone lowers the plan to at most `bytes`:
// "--micro-batch-size 4 (needs 61.20 GiB)". Empty when none is known.
std::vector<std::string> remedies(const RunConfig& config, DeviceType device, int64_t bytes);

// Throws ConfigError with the remedies when the plan needs more than `free_bytes`. Nothing when
// free_bytes is below 0 (unknown) or --skip-memory-check was given.
void expect_to_fit(const RunConfig& config, Device device, int64_t free_bytes);

// "12.34 GiB", "56.7 MiB"
std::string size_text(int64_t bytes);

}  // namespace megatron
