#include "megatron/training/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "megatron/core/error.h"
#include "megatron/training/signals.h"

namespace megatron {
namespace {

// Sums of the logged values, kept on their device so that a microbatch never waits for one.
class LossSums {
 public:
  void add(const MicrobatchLoss& microbatch) {
    for (const auto& [name, value] : microbatch.logged) {
      const auto same = [&name = name](const auto& entry) { return entry.first == name; };
      const auto found = std::find_if(sums_.begin(), sums_.end(), same);
      if (found == sums_.end()) {
        sums_.emplace_back(name, copied(value));
      } else {
        add_inplace(found->second, value);
      }
    }
    count_ += 1;
  }

  NamedValues means() const {
    NamedValues values;
    for (const auto& [name, sum] : sums_) {
      values.emplace_back(name, sum.item() / static_cast<double>(count_));
    }
    return values;
  }

 private:
  std::vector<std::pair<std::string, Tensor>> sums_;
  int64_t count_ = 0;
};

bool is_due(int64_t interval, int64_t iteration) {
  return interval > 0 && iteration % interval == 0;
}

}  // namespace

Trainer::Trainer(TrainerParts parts)
    : parts_(std::move(parts)),
      train_iters_(train_iters_of(parts_.config)),
      log_(parts_.config, train_iters_, parts_.progress, parts_.device) {
  if (parts_.config.log_progress && !parts_.save_directory.empty()) {
    progress_file_.emplace(std::filesystem::path(parts_.save_directory) / "progress.txt",
                           parts_.data_parallel_size, parts_.progress);
  }
}

void Trainer::run() {
  const TrainingConfig& config = parts_.config;
  std::optional<ExitSignals> signals;
  if (config.exit_signal_handler) signals.emplace();

  bool left_early = false;
  if (!config.skip_train) {
    log_.line("training ...");
    log_.line(datetime_text("before the start of training step"));
    log_.resume();
    while (parts_.progress.iteration < train_iters_ && !left_early) {
      const int64_t before = parts_.microbatches.num_microbatches();
      parts_.microbatches.update(parts_.progress.consumed_train_samples, false);
      const bool has_grown = parts_.microbatches.num_microbatches() != before;
      if (has_grown && parts_.progress.iteration != 0)
        save();  // the last state of the smaller batch
      parts_.microbatches.update(parts_.progress.consumed_train_samples, true);

      const IterationResult result = train_step();
      log_.iteration(parts_.progress, result);
      left_early = finish_iteration();
    }
    log_.pause();
    log_.flush();
    if (left_early) return;
    log_.line(datetime_text("after training is done"));
    if (parts_.progress.iteration != 0) save();
  }

  const std::string prefix = fmt::format("iteration {} on ", parts_.progress.iteration);
  evaluate_and_print(Split::kValid, prefix + "validation set", true);
  evaluate_and_print(Split::kTest, prefix + "test set", true);
  log_.flush();
}

IterationResult Trainer::train_step() {
  const TrainingConfig& config = parts_.config;
  Progress& progress = parts_.progress;
  const int64_t num_microbatches = parts_.microbatches.num_microbatches();
  IterationResult result;
  result.global_batch_size = parts_.microbatches.global_batch_size();
  result.tokens = result.global_batch_size * parts_.tokens_per_sample;
  result.floating_point_operations = parts_.flops(result.global_batch_size);

  const bool is_trained =
      std::find(config.iterations_to_skip.begin(), config.iterations_to_skip.end(),
                progress.iteration + 1) == config.iterations_to_skip.end();
  parts_.random.set_training(is_trained);
  parts_.parameters.zero_grads();
  LossSums losses;
  log_.timers().start("forward-backward", 1);
  for (int64_t k = 0; k < num_microbatches; ++k) {
    parts_.random.set_first_sample(progress.consumed_train_samples +
                                   k * config.micro_batch_size * parts_.data_parallel_size);
    std::optional<NoGrad> no_grad;
    if (!is_trained) no_grad.emplace();

    log_.timers().start("forward-compute", 2);
    const MicrobatchLoss microbatch = parts_.task.forward_step(Split::kTrain);
    log_.timers().stop("forward-compute", 2);
    losses.add(microbatch);

    log_.timers().start("backward-compute", 2);
    const double seed = parts_.optimizer.loss_scale() / static_cast<double>(num_microbatches);
    backward(microbatch.loss, full(microbatch.loss.shape(), static_cast<float>(seed),
                                   microbatch.loss.dtype(), microbatch.loss.stream()));
    log_.timers().stop("backward-compute", 2);
  }
  log_.timers().stop("forward-backward", 1);
  result.losses = losses.means();

  if (is_trained) {
    const TimerScope timer(log_.timers(), "optimizer", 1);
    // The check of Megatron-LM's loss function: without a loss scaler a NaN is an error at once.
    if (config.check_for_nan_in_loss_and_grad && parts_.optimizer.loss_scale() == 1.0) {
      for (const auto& [name, value] : result.losses) {
        if (!std::isnan(value)) continue;
        throw Error(fmt::format(
            "iteration {}: {} is not a number; lower --lr, look at the data around sample {}, or "
            "pass --no-check-for-nan-in-loss-and-grad to go on",
            progress.iteration + 1, name, progress.consumed_train_samples));
      }
    }
    const StepResult step = parts_.optimizer.step(parts_.scheduler.rates());
    result.is_skipped = !step.ok;
    result.grad_norm = step.grad_norm;
    if (step.num_zeros) result.num_zeros = static_cast<double>(*step.num_zeros);
    if (step.ok) parts_.scheduler.advance(result.global_batch_size);
  } else {
    result.is_skipped = true;
  }
  if (config.log_params_norm) result.params_norm = parts_.optimizer.parameter_norm();
  result.learning_rate = parts_.scheduler.rates().lr;
  result.loss_scale = parts_.optimizer.loss_scale();

  progress.iteration += 1;
  progress.consumed_train_samples += result.global_batch_size;
  progress.floating_point_operations += result.floating_point_operations;
  return result;
}

bool Trainer::finish_iteration() {
  const TrainingConfig& config = parts_.config;
  const int64_t iteration = parts_.progress.iteration;

  if (is_due(config.eval_interval, iteration) && config.eval_iters > 0) {
    log_.pause();
    evaluate_and_print(Split::kValid, fmt::format("iteration {}", iteration), false);
    log_.resume();
  }
  if (config.exit_signal_handler && ExitSignals::received() != nullptr) {
    save();
    log_.line(
        datetime_text(fmt::format("exiting program after receiving {}.", ExitSignals::received())));
    return true;
  }
  if (is_due(parts_.save_interval, iteration)) save();
  if (config.exit_duration_in_mins > 0 && is_out_of_time()) {
    if (last_saved_ != iteration) save();
    const auto elapsed = std::chrono::steady_clock::now() - parts_.started;
    log_.line(
        datetime_text(fmt::format("exiting program after {} minutes",
                                  std::chrono::duration<double, std::ratio<60>>(elapsed).count())));
    return true;
  }
  if (is_due(config.exit_interval, iteration)) {
    if (last_saved_ != iteration) save();
    log_.line(datetime_text(fmt::format("exiting program at iteration {}", iteration)));
    return true;
  }
  return false;
}

std::optional<NamedValues> Trainer::evaluate(Split split, bool is_verbose) {
  const TrainingConfig& config = parts_.config;
  const NoGrad no_grad;
  const TimerScope timer(log_.timers(), "evaluate", 0);
  parts_.random.set_training(false);

  const int64_t num_microbatches = parts_.microbatches.final_num_microbatches();
  const int64_t samples = parts_.microbatches.schedule().final_batch_size();
  if (is_verbose) log_.line(fmt::format("Evaluating on {} samples", config.eval_iters * samples));
  NamedValues means;
  for (int64_t i = 0; i < config.eval_iters; ++i) {
    if (is_verbose) log_.line(fmt::format("Evaluating iter {}/{}", i + 1, config.eval_iters));
    LossSums losses;
    for (int64_t k = 0; k < num_microbatches; ++k) losses.add(parts_.task.forward_step(split));
    for (const auto& [name, value] : losses.means()) {
      value_of(means, name) += value / static_cast<double>(config.eval_iters);
    }
    if (split == Split::kValid) parts_.progress.consumed_valid_samples += samples;
    if (config.exit_duration_in_mins > 0 && is_out_of_time()) {
      log_.line("Exiting during evaluation, timelimit reached");
      return std::nullopt;
    }
  }
  return means;
}

void Trainer::evaluate_and_print(Split split, const std::string& prefix, bool is_verbose) {
  if (parts_.config.eval_iters == 0 || !parts_.task.has_split(split)) return;
  const std::optional<NamedValues> losses = evaluate(split, is_verbose);
  if (!losses) return;
  const std::string times = log_.timers().report({"evaluate"}, 1);
  if (!times.empty()) log_.line(times);
  log_.validation(parts_.progress, prefix, *losses);
}

void Trainer::save() {
  if (!parts_.save) return;
  log_.pause();
  log_.timers().start("save-checkpoint", 0);
  log_.line(saving_text(parts_.progress.iteration, parts_.save_directory));
  parts_.save(parts_.progress);
  last_saved_ = parts_.progress.iteration;
  if (progress_file_) {
    progress_file_->saved_checkpoint(parts_.progress, parts_.tokens_per_sample);
  }
  log_.line(saved_text(parts_.progress.iteration, parts_.save_directory));
  log_.timers().stop("save-checkpoint", 0);
  const std::string times = log_.timers().report({"save-checkpoint"}, 1);
  if (!times.empty()) log_.line(times);
  log_.resume();
}

bool Trainer::is_out_of_time() const {
  const auto elapsed = std::chrono::steady_clock::now() - parts_.started;
  return elapsed > std::chrono::minutes(parts_.config.exit_duration_in_mins);
}

}  // namespace megatron
