#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "megatron/core/append_file.h"
#include "megatron/device/device.h"
#include "megatron/training/config.h"
#include "megatron/training/console_log.h"
#include "megatron/training/progress.h"
#include "megatron/training/progress_bar.h"
#include "megatron/training/tensorboard.h"
#include "megatron/training/timers.h"

namespace megatron {

// What one iteration did.
struct IterationResult {
  bool is_skipped = false;   // overflow: nothing was updated
  NamedValues losses;        // means over the microbatches
  double learning_rate = 0;  // of the next update, as Megatron-LM logs it
  double loss_scale = 1;
  std::optional<double> grad_norm;
  std::optional<double> num_zeros;
  std::optional<double> params_norm;
  int64_t global_batch_size = 0;
  int64_t tokens = 0;
  double floating_point_operations = 0;
};

// One JSON object per line, so that a run can be watched with any tool.
class MetricsFile {
 public:
  // Throws IoError when the file cannot be opened.
  explicit MetricsFile(std::filesystem::path path);

  // values are numbers; NaN and infinity become null, as JSON has neither.
  void write(const NamedValues& values);

 private:
  AppendFile file_;
};

// Everything a run says while it trains: Megatron-LM's lines on the console, TensorBoard events,
// metrics as JSON lines, and a progress bar on a terminal.
class TrainingLog {
 public:
  // `first` is where this run begins: 0, or the iteration of the loaded checkpoint.
  // Memory is that of `device`. is_kept: of many ranks this one keeps the log; others say nothing.
  TrainingLog(const TrainingConfig& config, int64_t train_iters, const Progress& first,
              Device device, bool is_kept = true);

  bool is_kept() const { return is_kept_; }

  Timers& timers() { return timers_; }
  // The writer of --tensorboard-dir, or null.
  TensorBoardWriter* tensorboard() { return tensorboard_ ? &*tensorboard_ : nullptr; }

  // After every iteration; `progress` already counts it. Prints when --log-interval says so.
  void iteration(const Progress& progress, const IterationResult& result);
  // After an evaluation. `prefix` is "iteration 10", "iteration 20 on test set".
  void validation(const Progress& progress, const std::string& prefix, const NamedValues& losses);
  // A line of its own, above the progress bar.
  void line(const std::string& text);
  // The clock of "elapsed time per iteration" stands still during evaluation and saving.
  void pause() { timers_.stop(kInterval, 0); }
  void resume() { timers_.start(kInterval, 0); }

 private:
  static constexpr const char* kInterval = "interval-time";

  void print_interval(const Progress& progress, const IterationResult& result);
  void write_tensorboard(const Progress& progress, const IterationResult& result);

  TrainingConfig config_;
  int64_t train_iters_;
  Device device_;
  bool is_kept_;
  Timers timers_;
  ProgressBar bar_;
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<MetricsFile> metrics_;

  // Sums since the last line.
  NamedValues loss_sums_;
  int64_t advanced_ = 0;
  int64_t skipped_ = 0;
  int64_t nan_ = 0;
  int64_t tokens_ = 0;
  double flops_ = 0;
  bool has_reported_memory_ = false;
};

}  // namespace megatron
