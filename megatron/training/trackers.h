#pragma once

#include <memory>
#include <vector>

#include "megatron/training/run_config.h"
#include "megatron/training/tracker.h"

namespace megatron {

// The trackers that flags and environment ask for (docs/trackers.md), except TensorBoard. One that
// cannot be opened costs its numbers, not the run: a warning says so.
std::vector<std::unique_ptr<Tracker>> open_trackers(const RunConfig& run);

}  // namespace megatron
