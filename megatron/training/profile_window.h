#pragma once

#include <filesystem>
#include <optional>

#include "megatron/comm/group.h"
#include "megatron/device/trace.h"
#include "megatron/training/config.h"

namespace megatron {

// --profile: traces the iterations from --profile-step-start to --profile-step-end, both in
// finished iterations, on the ranks of --profile-ranks. Rank 0 writes profile_rank<rank>.json, or,
// for several ranks, profile.json with all of them, beside TensorBoard's files, or the checkpoints,
// or into the current directory. Ranks of other hosts align their clocks with rank 0's. On a GPU a
// profiler that waits for cudaProfilerStart records the same window.
class ProfileWindow {
 public:
  ProfileWindow(const TrainingConfig& config, const comm::Group& world, Device device,
                const std::filesystem::path& save_directory);
  ~ProfileWindow();
  ProfileWindow(const ProfileWindow&) = delete;
  ProfileWindow& operator=(const ProfileWindow&) = delete;

  // Call before and after an iteration, on every rank; `done` is the number of finished iterations.
  // The tracer is active on this thread in between. Throw IoError if the file cannot be written.
  void before_iteration(int64_t done);
  void after_iteration(int64_t done);
  // Writes the trace if training ends inside the window.
  void finish();

 private:
  const bool is_on_;      // on any rank
  const bool is_wanted_;  // on this rank
  const comm::Group world_;
  const int64_t begin_;
  const int64_t end_;
  const bool is_on_gpu_;
  const std::filesystem::path path_;
  bool has_begun_ = false;
  bool is_over_ = false;
  std::optional<Tracer> tracer_;
  std::optional<TraceScope> scope_;
};

}  // namespace megatron
