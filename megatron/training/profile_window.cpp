#include "megatron/training/profile_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/texts.h"
#include "megatron/comm/transport.h"
#include "megatron/core/log.h"
#include "megatron/device/cuda.h"

namespace megatron {
namespace {

std::filesystem::path profile_path(const TrainingConfig& config,
                                   const std::filesystem::path& save_directory) {
  const std::filesystem::path directory = !config.tensorboard_dir.empty()
                                              ? std::filesystem::path(config.tensorboard_dir)
                                              : save_directory;
  const std::vector<int64_t>& ranks = config.profile_ranks;
  return directory /
         (ranks.size() == 1 ? fmt::format("profile_rank{}.json", ranks[0]) : "profile.json");
}

int64_t now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// The offset from this rank's clock to rank 0's, measured by asking rank 0 for the time: the error
// is half of the shortest round trip. 0 on one host.
int64_t clock_shift_ns(const comm::Group& world) {
  constexpr int kRounds = 8;
  if (world.transport().context().hosts.empty()) return 0;
  const auto send = [&](int64_t time, int to) {
    comm::send({&time, {1}, DType::kInt64}, to, world, Stream{});
  };
  const auto receive = [&](int from) {
    int64_t time = 0;
    comm::recv({&time, {1}, DType::kInt64}, from, world, Stream{});
    return time;
  };
  int64_t shift = 0;
  for (int rank = 1; rank < world.size(); ++rank) {
    int64_t shortest = INT64_MAX;
    for (int round = 0; round < kRounds; ++round) {
      if (world.rank() == 0) {
        receive(rank);
        send(now_ns(), rank);
      } else if (world.rank() == rank) {
        const int64_t asked = now_ns();
        send(0, 0);
        const int64_t theirs = receive(0);
        const int64_t answered = now_ns();
        if (answered - asked >= shortest) continue;
        shortest = answered - asked;
        shift = theirs - (asked + answered) / 2;
      }
    }
  }
  return shift;
}

}  // namespace

ProfileWindow::ProfileWindow(const TrainingConfig& config, const comm::Group& world, Device device,
                             const std::filesystem::path& save_directory)
    : is_on_(config.profile),
      is_wanted_(config.profile &&
                 std::find(config.profile_ranks.begin(), config.profile_ranks.end(),
                           world.rank()) != config.profile_ranks.end()),
      world_(world),
      begin_(config.profile_step_start),
      end_(config.profile_step_end),
      is_on_gpu_(!device.is_cpu()),
      path_(profile_path(config, save_directory)) {}

ProfileWindow::~ProfileWindow() = default;

void ProfileWindow::before_iteration(int64_t done) {
  if (!is_on_ || has_begun_ || done < begin_ || done >= end_) return;
  has_begun_ = true;
  if (!is_wanted_) return;
  if (is_on_gpu_) cuda::start_profiler();
  tracer_.emplace(world_.rank());
  scope_.emplace(&*tracer_);
}

void ProfileWindow::after_iteration(int64_t done) {
  if (done >= end_) finish();
}

void ProfileWindow::finish() {
  if (!has_begun_ || is_over_) return;
  is_over_ = true;
  scope_.reset();
  if (is_wanted_ && is_on_gpu_) cuda::stop_profiler();
  const int64_t shift = clock_shift_ns(world_);
  const std::vector<std::string> events =
      comm::gathered_on_first(tracer_ ? tracer_->events(shift) : "", world_);
  tracer_.reset();
  if (world_.rank() != 0) return;
  std::error_code ignored;  // writing the file reports the reason
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), ignored);
  write_trace(path_, events);
  const LogScope on_first(true);
  print_line(fmt::format("profile written to {}; open it in chrome://tracing or ui.perfetto.dev",
                         path_.string()));
}

}  // namespace megatron
