#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megatron/training/curriculum.h"

namespace megatron {

enum class TimingLogOption { kMax, kMinMax, kAll };
enum class DeviceChoice { kAuto, kCpu, kCuda };

// --rampup-batch-size: the global batch starts at `start` and grows by `increment` until `samples`
// samples are consumed.
struct RampupBatchSize {
  int64_t start = 0;
  int64_t increment = 0;
  int64_t samples = 0;
};

// Length of a run, its batches, and its times of evaluation, logging and exit. Names are Megatron's
// flag names; every interval is in iterations, and 0 means never.
struct TrainingConfig {
  // Batches, in samples.
  int64_t micro_batch_size = 0;                // required
  int64_t global_batch_size = 0;               // 0: micro_batch_size * dp
  std::vector<std::string> rampup_batch_size;  // the flag's three words; empty: constant
  bool decrease_batch_size_if_needed = false;  // round down to a multiple of micro_batch_size * dp
  bool deepspeed = false;  // count the iterations of a ramp-up as Megatron-DeepSpeed does

  // Length over all runs; exactly one of the two is set.
  int64_t train_iters = 0;
  int64_t train_samples = 0;
  CurriculumConfig curriculum;              // of a DeepSpeed configuration
  std::vector<int64_t> iterations_to_skip;  // 1-based; their data is consumed but not trained on

  // Ending early.
  int64_t exit_interval = 0;
  int64_t exit_duration_in_mins = 0;  // 0: no limit
  bool exit_signal_handler = false;   // save and exit on SIGTERM
  std::string kill_switch_path;       // save and exit when this file exists; empty: none

  // Evaluation.
  int64_t eval_iters = 100;
  int64_t eval_interval = 1000;
  // Evaluate at the end, on the next batches, even if that was just done after the last iteration.
  bool repeat_last_evaluation = false;
  bool skip_train = false;

  // Randomness and numerics.
  int64_t seed = 1234;
  bool data_parallel_random_init = false;
  bool calculate_per_token_loss = false;
  bool deterministic_mode = false;
  bool allow_tf32 = false;      // fp32 products on a GPU round their factors to TF32
  std::string megatron_compat;  // keep the accidents of this version; empty: none

  // A task from a library in place of the command's own (run/train_step.h).
  std::string train_step;                    // path of the shared library; empty: none
  std::vector<std::string> train_step_args;  // "key=value"

  // Console and event files.
  int64_t log_interval = 100;
  bool log_params_norm = false;
  bool log_num_zeros_in_grad = false;
  bool log_throughput = false;
  bool log_straggler = false;                 // name the slowest ranks (StragglerLog)
  bool disable_straggler_on_startup = false;  // and not even then
  int64_t straggler_minmax_count = 1;         // ranks named at either end
  bool log_progress = false;                  // progress.txt beside the checkpoints
  int64_t timing_log_level = 0;               // 0 to 2: timers of higher levels are off
  TimingLogOption timing_log_option = TimingLogOption::kMinMax;
  bool barrier_with_level_1_timing = true;
  std::string tensorboard_dir;
  int64_t tensorboard_log_interval = 1;
  int64_t tensorboard_queue_size = 1000;
  bool log_timers_to_tensorboard = false;
  bool log_batch_size_to_tensorboard = false;
  bool log_learning_rate_to_tensorboard = true;
  bool log_loss_scale_to_tensorboard = true;
  bool log_validation_ppl_to_tensorboard = false;
  bool log_memory_to_tensorboard = false;
  bool log_world_size_to_tensorboard = false;
  std::string metrics_jsonl;   // one JSON object per logged iteration; empty: none
  std::string csv_dir;         // one CSV file for each metric; empty: none
  std::string codecarbon_dir;  // emissions.csv, the energy of the run; empty: none
  std::string log_path;        // a file with the arguments of the run; empty: none
  // A run of Weights & Biases, in wandb_save_dir and, with a key, live; no project: none.
  std::string wandb_project;
  std::string wandb_exp_name;
  std::string wandb_save_dir;
  std::string wandb_entity;  // user or team that owns the project; empty: that of the key
  // A run of MLflow, live; no experiment: none.
  std::string mlflow_experiment;
  std::string mlflow_run_name;
  std::string mlflow_tracking_uri;  // empty: MLFLOW_TRACKING_URI
  // The page of `megatron report` of the run so far, served during training (Dashboard).
  std::string dashboard_host = "127.0.0.1";
  int64_t dashboard_port = 0;  // 0: none
  bool check_for_nan_in_loss_and_grad = true;
  // Interval, in iterations, at which ranks compare their copies; a save always compares.
  int64_t check_weight_hash_across_dp_replicas_interval = 0;

  // Profiler window, in iterations.
  bool profile = false;
  int64_t profile_step_start = 10;
  int64_t profile_step_end = 12;
  std::vector<int64_t> profile_ranks = {0};

  // The machine.
  DeviceChoice device = DeviceChoice::kAuto;
  int64_t num_threads = 0;         // of CPU kernels; 0: as many as this process has cores
  bool cuda_graph = true;          // replay microbatches on a GPU if possible
  bool skip_memory_check = false;  // train even if the planned memory is not available
};

// The three numbers of --rampup-batch-size. REQUIRES: problems() is empty, and the list is not.
RampupBatchSize rampup_of(const TrainingConfig& config);

// Fills global_batch_size; rounds it down if decrease_batch_size_if_needed. Pure.
TrainingConfig resolved(TrainingConfig config, int64_t data_parallel_size);

// Everything wrong with a resolved config, one sentence each; empty if it is valid.
std::vector<std::string> problems(const TrainingConfig& config, int64_t data_parallel_size);

}  // namespace megatron
