#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "megatron/device/random.h"
#include "megatron/optim/optimizer.h"
#include "megatron/training/microbatch_calculator.h"
#include "megatron/training/progress.h"
#include "megatron/training/progress_file.h"
#include "megatron/training/train_task.h"
#include "megatron/training/training_log.h"

namespace megatron {

// What the loop works on; owned by the program, alive as long as the Trainer.
struct TrainerParts {
  const TrainingConfig& config;  // resolved
  TrainTask& task;
  FlatParameters& parameters;
  Optimizer& optimizer;
  ParameterScheduler& scheduler;
  MicrobatchCalculator& microbatches;
  RandomState& random;
  Progress& progress;
  Device device;
  int64_t data_parallel_size = 1;
  int64_t tokens_per_sample = 0;
  // Model FLOPs of an iteration of that many samples.
  std::function<double(int64_t batch_size)> flops;
  // Writes a checkpoint of everything above; null: --save was not given.
  std::function<void(const Progress&)> save;
  int64_t save_interval = 0;                      // iterations; 0: only at the end
  std::string save_directory;                     // named in the log lines
  std::chrono::steady_clock::time_point started;  // of the process: --exit-duration-in-mins
};

// The training loop of Megatron-LM core_r0.5.0 (its order of update, evaluation, saving and exits).
class Trainer {
 public:
  explicit Trainer(TrainerParts parts);

  // Trains to the last iteration, or to an exit condition, then saves and evaluates.
  // With --skip-train only the final evaluations run.
  void run();

  // One iteration without log lines, evaluation or saving; counts it in `progress`. What run()
  // repeats and `megatron bench` times.
  IterationResult train_step();

 private:
  // Mean losses over eval_iters global batches. None when the time limit ended it.
  std::optional<NamedValues> evaluate(Split split, bool is_verbose);
  void evaluate_and_print(Split split, const std::string& prefix, bool is_verbose);
  // Evaluation, saving and exits that are due after an iteration. True: leave the loop.
  bool finish_iteration();
  void save();
  bool is_out_of_time() const;

  TrainerParts parts_;
  const int64_t train_iters_;
  TrainingLog log_;
  std::optional<ProgressFile> progress_file_;  // --log-progress
  int64_t last_saved_ = -1;                    // iteration
};

}  // namespace megatron
