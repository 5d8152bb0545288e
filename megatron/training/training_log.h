#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megatron/device/device.h"
#include "megatron/training/config.h"
#include "megatron/training/console_log.h"
#include "megatron/training/progress.h"
#include "megatron/training/progress_bar.h"
#include "megatron/training/run_config.h"
#include "megatron/training/tensorboard.h"
#include "megatron/training/timers.h"
#include "megatron/training/tracker.h"

namespace megatron {

// The results of one iteration.
struct IterationResult {
  bool is_skipped = false;   // nothing was updated
  bool overflows = false;    // because gradients are not finite
  NamedValues losses;        // means over the microbatches
  double learning_rate = 0;  // of the next update, as in Megatron-LM's log
  double loss_scale = 1;
  std::optional<double> grad_norm;
  std::optional<double> num_zeros;
  std::optional<double> params_norm;
  int64_t global_batch_size = 0;
  int64_t tokens = 0;
  // With a curriculum: the length of this iteration's sequences, and the tokens of all iterations.
  std::optional<int64_t> sequence_length;
  std::optional<int64_t> consumed_tokens;
  double floating_point_operations = 0;
  double seconds = 0;     // on the device, since the iteration, evaluation or save before
  NamedValues of_layers;  // for trackers alone: --moe-per-layer-logging
};

// All output of a run during training: Megatron-LM's lines on the console, TensorBoard events, the
// other trackers, and a progress bar on a terminal.
class TrainingLog {
 public:
  // `first` is the run's start: 0, or the iteration of the loaded checkpoint. Reports the memory of
  // `device`. is_kept: this one of the `world_size` ranks keeps the log; others print nothing.
  TrainingLog(const RunConfig& run, int64_t train_iters, const Progress& first, Device device,
              int64_t world_size, bool is_kept);

  bool is_kept() const { return is_kept_; }

  Timers& timers() { return timers_; }
  // The writer of --tensorboard-dir; null without one, or if it cannot be opened.
  TensorBoardWriter* tensorboard() { return tensorboard_ ? &*tensorboard_ : nullptr; }

  // Call after every iteration; `progress` includes it. Prints at --log-interval.
  void iteration(const Progress& progress, const IterationResult& result);
  // Call after an evaluation. `group` names the part of the data, or is empty; `prefix` is
  // "iteration 10", "iteration 20 on test set".
  void validation(const Progress& progress, const std::string& group, const std::string& prefix,
                  const NamedValues& losses);
  // Shows the progress of an evaluation; must not outlive this log.
  EvaluationProgress evaluation_progress(int64_t num_batches) {
    return EvaluationProgress(is_kept_ ? &bar_.line() : nullptr, num_batches);
  }
  // Prints a line above the progress bar.
  void line(const std::string& text);

 private:
  void open_trackers(const RunConfig& run, int64_t iteration);
  void track(int64_t iteration, const NamedValues& values);
  void print_interval(const Progress& progress, const IterationResult& result);
  void write_tensorboard(const Progress& progress, const IterationResult& result);
  void write_timers(const Progress& progress, double iterations);

  TrainingConfig config_;
  int64_t train_iters_;
  Device device_;
  int64_t world_size_;
  bool is_kept_;
  Timers timers_;
  ProgressBar bar_;
  std::optional<TensorBoardWriter> tensorboard_;
  std::vector<std::unique_ptr<Tracker>> trackers_;
  std::optional<double> peak_flops_;  // of the device, per second
  double hardware_factor_ = 1;        // operations of the device for one of the model

  // Sums since the last line.
  NamedValues loss_sums_;
  int64_t advanced_ = 0;
  int64_t skipped_ = 0;
  int64_t nan_ = 0;
  int64_t tokens_ = 0;
  double flops_ = 0;
  double seconds_ = 0;
  bool has_reported_memory_ = false;
  std::string overflow_reason_;  // why fp16 skips iterations; empty: for other dtypes, or printed
};

}  // namespace megatron
