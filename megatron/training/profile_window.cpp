#include "megatron/training/profile_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "megatron/core/log.h"
#include "megatron/device/cuda.h"

namespace megatron {
namespace {

std::filesystem::path profile_path(const TrainingConfig& config, int rank,
                                   const std::filesystem::path& save_directory) {
  const std::filesystem::path directory = !config.tensorboard_dir.empty()
                                              ? std::filesystem::path(config.tensorboard_dir)
                                              : save_directory;
  return directory / fmt::format("profile_rank{}.json", rank);
}

}  // namespace

ProfileWindow::ProfileWindow(const TrainingConfig& config, int rank, Device device,
                             const std::filesystem::path& save_directory)
    : is_wanted_(config.profile &&
                 std::find(config.profile_ranks.begin(), config.profile_ranks.end(), rank) !=
                     config.profile_ranks.end()),
      rank_(rank),
      begin_(config.profile_step_start),
      end_(config.profile_step_end),
      is_on_gpu_(!device.is_cpu()),
      path_(profile_path(config, rank, save_directory)) {}

ProfileWindow::~ProfileWindow() = default;

void ProfileWindow::before_iteration(int64_t done) {
  if (!is_wanted_ || is_over_ || tracer_ || done < begin_ || done >= end_) return;
  if (is_on_gpu_) cuda::start_profiler();
  tracer_.emplace(rank_);
  scope_.emplace(&*tracer_);
}

void ProfileWindow::after_iteration(int64_t done) {
  if (done >= end_) finish();
}

void ProfileWindow::finish() {
  if (!tracer_) return;
  is_over_ = true;
  scope_.reset();
  if (is_on_gpu_) cuda::stop_profiler();
  std::error_code ignored;  // the file says why it cannot be written
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), ignored);
  tracer_->write(path_);
  tracer_.reset();
  print_line(fmt::format("profile written to {}; open it in chrome://tracing or ui.perfetto.dev",
                         path_.string()));
}

}  // namespace megatron
