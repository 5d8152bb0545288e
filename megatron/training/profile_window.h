#pragma once

#include <filesystem>
#include <optional>

#include "megatron/comm/group.h"
#include "megatron/device/trace.h"
#include "megatron/training/config.h"

namespace megatron {

// --profile: traces the iterations from --profile-step-start to --profile-step-end, both counted in
// iterations that are done, on the ranks of --profile-ranks. Rank 0 writes profile_rank<rank>.json,
// or profile.json with all of them where they are several, beside TensorBoard's files, or the
// checkpoints, or into the current directory. Ranks of other hosts bring their clocks in line with
// rank 0's. On a GPU the window is also what a profiler records that waits for cudaProfilerStart.
class ProfileWindow {
 public:
  ProfileWindow(const TrainingConfig& config, const comm::Group& world, Device device,
                const std::filesystem::path& save_directory);
  ~ProfileWindow();
  ProfileWindow(const ProfileWindow&) = delete;
  ProfileWindow& operator=(const ProfileWindow&) = delete;

  // Before and after an iteration, on every rank; `done` counts those that are done. The tracer is
  // active on this thread in between. Throw IoError when the file cannot be written.
  void before_iteration(int64_t done);
  void after_iteration(int64_t done);
  // Writes what there is when training ends inside the window.
  void finish();

 private:
  const bool is_on_;      // on some rank
  const bool is_wanted_;  // on this one
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
