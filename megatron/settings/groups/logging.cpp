#include "megatron/settings/groups/groups.h"

namespace megatron {

void add_logging_flags(FlagTable& flags, TrainingArgs& args) {
  using T = FlagType;
  TrainingConfig& c = args.training;
  ArgMap& other = args.other;
  const ArgValue none;

  flags.group("logging");
  flags.add("--log-interval", c.log_interval, "Iterations between log lines.");
  flags.add_choice(
      "--log-arguments", args.log_arguments,
      {{"set", LogArguments::kSet}, {"all", LogArguments::kAll}, {"none", LogArguments::kNone}},
      "Arguments listed at the start: set, those that differ from their defaults or "
      "are on the command line; all, as Megatron-LM; or none.");
  flags.add_switch("--log-params-norm", c.log_params_norm, "Log the L2 norm of the parameters.");
  flags.add_switch("--log-num-zeros-in-grad", c.log_num_zeros_in_grad,
                   "Log the number of gradients that are exactly 0.");
  flags.add_switch("--log-throughput", c.log_throughput, "Log TFLOP/s per device.");
  flags
      .add_switch("--log-straggler", c.log_straggler,
                  "Log the times of the slowest and of the fastest rank, without their waits.")
      .is_listed = false;
  flags
      .add_switch("--disable-straggler-on-startup", c.disable_straggler_on_startup,
                  "Begin without --log-straggler; here it cannot be switched on later.")
      .is_listed = false;
  flags
      .add("--straggler-minmax-count", c.straggler_minmax_count,
           "Number of slowest and of fastest ranks that --log-straggler names.")
      .is_listed = false;
  flags.add_later_entry("--straggler-ctrlr-port", T::kInt, other, int64_t{65535},
                        "Port that switches --log-straggler.");
  flags.add_switch("--log-progress", c.log_progress, "Keep progress.txt beside the checkpoints.");
  flags.add_optional("--metrics-jsonl", c.metrics_jsonl,
                     "Append one JSON object per log line to this file.");
  flags.add_optional("--csv-dir", c.csv_dir,
                     "Append each number of a log line to its own CSV file in this folder.");
  flags
      .add_optional("--dashboard-port", c.dashboard_port,
                    "Port of a web page that shows the run while it trains.")
      .not_zero()
      .at_most(65535);
  flags.add("--dashboard-host", c.dashboard_host,
            "Address of the page of --dashboard-port; 0.0.0.0 for all interfaces, without a key.");
  flags.add(
      "--timing-log-level", c.timing_log_level,
      "Timers to log: 0 the iteration; 1 also its phases; 2 also the operations within them.");
  flags
      .add_off("--no-barrier-with-level-1-timing -> barrier_with_L1_time",
               c.barrier_with_level_1_timing, "Do not synchronize ranks before level 1 timers.")
      .no_effect("ranks are never synchronized before timers");
  using O = TimingLogOption;
  flags.add_choice("--timing-log-option", c.timing_log_option,
                   {{"max", O::kMax}, {"minmax", O::kMinMax}, {"all", O::kAll}},
                   "Ranks whose times are logged.");
  flags.add("--tensorboard-log-interval", c.tensorboard_log_interval,
            "Iterations between TensorBoard entries.");
  flags
      .add("--tensorboard-queue-size", c.tensorboard_queue_size,
           "TensorBoard entries in the queue before writing.")
      .no_effect("entries are written immediately");
  flags.add_switch("--log-timers-to-tensorboard", c.log_timers_to_tensorboard,
                   "Write the times of iterations, of --timing-log-level and of --log-throughput "
                   "to TensorBoard.");
  flags.add_switch("--log-batch-size-to-tensorboard", c.log_batch_size_to_tensorboard,
                   "Write the batch size to TensorBoard.");
  // Compat: Megatron-LM core_r0.5.0 has the misspelt name.
  flags.add_off(
      "--no-log-learnig-rate-to-tensorboard,--no-log-learning-rate-to-tensorboard -> "
      "log_learning_rate_to_tensorboard",
      c.log_learning_rate_to_tensorboard, "Do not write the learning rate to TensorBoard.");
  flags.add_off("--no-log-loss-scale-to-tensorboard", c.log_loss_scale_to_tensorboard,
                "Do not write the loss scale to TensorBoard.");
  flags.add_switch("--log-validation-ppl-to-tensorboard", c.log_validation_ppl_to_tensorboard,
                   "Write the validation perplexity to TensorBoard.");
  flags.add_switch("--log-memory-to-tensorboard", c.log_memory_to_tensorboard,
                   "Write memory statistics to TensorBoard.");
  flags.add_switch("--log-world-size-to-tensorboard", c.log_world_size_to_tensorboard,
                   "Write the number of ranks to TensorBoard.");

  flags.add("--wandb-project", c.wandb_project,
            "Write a run of this project for Weights & Biases: live if WANDB_API_KEY is set, "
            "otherwise offline, for `wandb sync`.");
  flags.add("--wandb-exp-name", c.wandb_exp_name,
            "Name of the run; required with --wandb-project.");
  flags.add("--wandb-save-dir", c.wandb_save_dir,
            "Directory of the run's file; <save>/wandb if not given.");
  flags.add("--wandb-entity", c.wandb_entity,
            "User or team that owns the project; WANDB_ENTITY, or that of the key, if not given.");
  flags.add("--mlflow-experiment", c.mlflow_experiment,
            "Send the run to this experiment of an MLflow server.");
  flags.add("--mlflow-run-name", c.mlflow_run_name,
            "Name of the run; the server chooses one if not given.");
  flags.add("--mlflow-tracking-uri", c.mlflow_tracking_uri,
            "Address of the server; MLFLOW_TRACKING_URI if not given.");
  flags.add_entry("--enable-one-logger", T::kSwitch, other, false, "An internal service.");
  flags.add_later_entry("--no-one-logger", T::kSwitch, other, false, "An internal service.");
  flags.add_entry("--one-logger-project", T::kText, other, "e2e-tracking", "An internal service.");
  flags.add_entry("--one-logger-entity", T::kText, other, "hwinf_dcm", "An internal service.");
  flags.add_entry("--one-logger-run-name", T::kText, other, none, "An internal service.");
  flags.add_later_entry("--log-memory-interval", T::kInt, other, none,
                        "Iterations between memory logs.");
  flags.add_later_entry("--log-energy", T::kSwitch, other, false, "Log energy.");
  flags.add_later_entry("--use-pytorch-profiler", T::kSwitch, other, false, "PyTorch's profiler.");
  flags.add_later_entry("--record-memory-history", T::kSwitch, other, false,
                        "PyTorch's memory history.");
  flags.add_later_entry("--memory-snapshot-path", T::kText, other, "snapshot.pickle",
                        "PyTorch's memory history.");
  flags.add_later_entry("--logging-level", T::kInt, other, none, "Python's logging level.");
}

}  // namespace megatron
