#include "megatron/training/training_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/log.h"
#include "megatron/device/allocator.h"
#include "megatron/training/flops.h"
#include "megatron/training/trackers.h"
#include "megatron/training/utilization.h"

namespace megatron {
namespace {

// Level 1 and 2 names of Megatron-LM's timer block, in its order.
std::vector<std::string_view> interval_timers() {
  return {"forward-backward",         "batch-generator",      "forward-compute", "backward-compute",
          "optimizer-clip-main-grad", "optimizer-inner-step", "optimizer"};
}

std::string memory_text(const Progress& progress, Device device) {
  constexpr double kMegabyte = 1024.0 * 1024.0;
  const MemoryStats stats = allocator_of(device).stats();
  return fmt::format(
      "[Rank 0] (after {} iterations) memory (MB) | allocated: {} | max allocated: {} | reserved: "
      "{} | max reserved: {}",
      progress.iteration, static_cast<double>(stats.allocated_bytes) / kMegabyte,
      static_cast<double>(stats.peak_allocated_bytes) / kMegabyte,
      static_cast<double>(stats.reserved_bytes) / kMegabyte,
      static_cast<double>(stats.peak_reserved_bytes) / kMegabyte);
}

// The end of a sentence about an iteration whose fp16 gradients were not finite.
std::string overflow_reason(const OptimizerConfig& config) {
  if (!config.fp16) return {};
  if (config.loss_scale != 0) {
    return fmt::format(
        "fp16 gradients overflow at --loss-scale {}; without that flag, a scale is found",
        config.loss_scale);
  }
  return fmt::format(
      "fp16 gradients overflow; the first iterations search the largest loss scale without one, "
      "from --initial-loss-scale {} down",
      config.initial_loss_scale);
}

}  // namespace

TrainingLog::TrainingLog(const RunConfig& run, int64_t train_iters, const Progress& first,
                         Device device, int64_t world_size, bool is_kept)
    : config_(run.training),
      train_iters_(train_iters),
      device_(device),
      world_size_(world_size),
      is_kept_(is_kept),
      timers_(config_.timing_log_level, config_.timing_log_option),
      bar_(first.iteration, train_iters) {
  if (!is_kept_) return;
  overflow_reason_ = overflow_reason(run.optimizer);
  peak_flops_ = peak_flops(run, device);
  hardware_factor_ = hardware_operations_factor(run);
  if (config_.log_throughput && !peak_flops_) {
    line("MFU and HFU are left out: the peak rate of this device and dtype is unknown");
  }
  open_trackers(run, first.iteration);
}

void TrainingLog::open_trackers(const RunConfig& run, int64_t iteration) {
  trackers_ = megatron::open_trackers(run);
  if (config_.tensorboard_dir.empty()) return;
  try {
    tensorboard_.emplace(config_.tensorboard_dir);
  } catch (const IoError& error) {
    warn(fmt::format("{}; the run continues without this tracker", error.what()));
    return;
  }
  for (const auto& [name, value] : run.settings) {
    tensorboard_->add_text(name, text_of(value), iteration);
  }
  tensorboard_->add_hyperparameters(run.settings);
}

void TrainingLog::track(int64_t iteration, const NamedValues& values) {
  for (const std::unique_ptr<Tracker>& tracker : trackers_) tracker->write(iteration, values);
}

void TrainingLog::iteration(const Progress& progress, const IterationResult& result) {
  if (!is_kept_) return;
  bool has_nan = false;
  for (const auto& [name, value] : result.losses) {
    has_nan = has_nan || !std::isfinite(value);
    if (!result.is_skipped && std::isfinite(value)) value_of(loss_sums_, name) += value;
  }
  (result.is_skipped ? skipped_ : advanced_) += 1;
  if (result.is_skipped && has_nan) nan_ += 1;
  if (result.is_skipped && result.overflows && !overflow_reason_.empty()) {
    line(fmt::format("iteration {} is skipped: {}", progress.iteration,
                     std::exchange(overflow_reason_, {})));
  }
  tokens_ += result.tokens;
  flops_ += result.floating_point_operations;
  seconds_ += result.seconds;

  write_tensorboard(progress, result);
  if (config_.log_interval > 0 && progress.iteration % config_.log_interval == 0) {
    print_interval(progress, result);
  }
  const double loss = result.losses.empty() ? 0 : result.losses.front().second;
  bar_.update(progress.iteration, loss, result.tokens);
}

void TrainingLog::print_interval(const Progress& progress, const IterationResult& result) {
  const double seconds = std::exchange(seconds_, 0);
  const auto iterations = static_cast<double>(advanced_ + skipped_);

  IterationLine line;
  line.iteration = progress.iteration;
  line.train_iters = train_iters_;
  line.consumed_samples = progress.consumed_train_samples;
  line.elapsed_ms = seconds * 1000 / iterations;
  const double teraflops = tflops_per_device(flops_, seconds, world_size_);
  if (peak_flops_) {
    line.mfu_percent = 100 * teraflops * 1e12 / *peak_flops_;
    line.hfu_percent = *line.mfu_percent * hardware_factor_;
  }
  if (config_.log_throughput) line.teraflops_per_device = teraflops;
  line.learning_rate = result.learning_rate;
  line.global_batch_size = result.global_batch_size;
  for (const auto& [name, sum] : loss_sums_) {
    line.losses.emplace_back(name, sum / static_cast<double>(std::max<int64_t>(1, advanced_)));
  }
  line.loss_scale = result.loss_scale;
  line.grad_norm = result.grad_norm;
  line.num_zeros = result.num_zeros;
  line.params_norm = result.params_norm;
  line.consumed_tokens = result.consumed_tokens;
  line.curriculum_seqlen = result.sequence_length;
  line.skipped_iterations = skipped_;
  line.nan_iterations = nan_;
  this->line(text_of(line));

  if (!trackers_.empty()) {
    NamedValues values = {
        {"consumed_train_samples", static_cast<double>(progress.consumed_train_samples)},
        {"elapsed_ms_per_iteration", line.elapsed_ms},
        {"tokens_per_second", static_cast<double>(tokens_) / seconds},
        {"learning_rate", line.learning_rate},
        {"global_batch_size", static_cast<double>(line.global_batch_size)},
        {"loss_scale", line.loss_scale}};
    values.insert(values.end(), line.losses.begin(), line.losses.end());
    if (line.grad_norm) values.emplace_back("grad_norm", *line.grad_norm);
    if (line.num_zeros) values.emplace_back("num_zeros", *line.num_zeros);
    if (line.params_norm) values.emplace_back("params_norm", *line.params_norm);
    if (line.mfu_percent) values.emplace_back("mfu_percent", *line.mfu_percent);
    if (line.hfu_percent) values.emplace_back("hfu_percent", *line.hfu_percent);
    if (result.sequence_length) {
      values.emplace_back("curriculum_seqlen", static_cast<double>(*result.sequence_length));
      values.emplace_back("consumed_train_tokens", static_cast<double>(*result.consumed_tokens));
    }
    values.insert(values.end(), result.of_layers.begin(), result.of_layers.end());
    values.emplace_back("skipped_iterations", static_cast<double>(skipped_));
    values.emplace_back("nan_iterations", static_cast<double>(nan_));
    track(progress.iteration, values);
  }
  if (!has_reported_memory_ && result.learning_rate > 0) {
    has_reported_memory_ = true;
    this->line(memory_text(progress, device_));
  }
  if (tensorboard_ && config_.log_timers_to_tensorboard) {
    tensorboard_->add_scalar("iteration-time", line.elapsed_ms / 1000, progress.iteration);
    if (line.teraflops_per_device) {
      tensorboard_->add_scalar("throughput", *line.teraflops_per_device, progress.iteration);
    }
    if (line.mfu_percent) {
      tensorboard_->add_scalar("mfu-percent", *line.mfu_percent, progress.iteration);
      tensorboard_->add_scalar("hfu-percent", *line.hfu_percent, progress.iteration);
    }
  }
  const std::string times = timers_.report(interval_timers(), iterations);
  if (!times.empty()) this->line(times);

  loss_sums_.clear();
  advanced_ = skipped_ = nan_ = tokens_ = 0;
  flops_ = 0;
}

void TrainingLog::write_tensorboard(const Progress& progress, const IterationResult& result) {
  if (!tensorboard_ || progress.iteration % config_.tensorboard_log_interval != 0) return;
  const auto add = [&](const std::string& tag, double value) {
    tensorboard_->add_scalar(tag, value, progress.iteration);
    tensorboard_->add_scalar(tag + " vs samples", value, progress.consumed_train_samples);
  };
  if (config_.log_learning_rate_to_tensorboard) add("learning-rate", result.learning_rate);
  if (config_.log_batch_size_to_tensorboard) {
    add("batch-size", static_cast<double>(result.global_batch_size));
  }
  for (const auto& [name, value] : result.losses) add(name, value);
  for (const auto& [name, value] : result.of_layers) {
    tensorboard_->add_scalar(name, value, progress.iteration);
  }
  if (config_.log_loss_scale_to_tensorboard) add("loss-scale", result.loss_scale);
  if (config_.log_world_size_to_tensorboard) add("world-size", static_cast<double>(world_size_));
  if (result.grad_norm) add("grad-norm", *result.grad_norm);
  if (result.num_zeros) add("num-zeros", *result.num_zeros);
  if (result.params_norm) add("params-norm", *result.params_norm);
  if (result.sequence_length) {
    tensorboard_->add_scalar("curriculum_seqlen", static_cast<double>(*result.sequence_length),
                             progress.iteration);
  }
  if (config_.log_timers_to_tensorboard) {
    write_timers(progress, static_cast<double>(advanced_ + skipped_));
  }
  if (config_.log_memory_to_tensorboard) {
    const MemoryStats stats = allocator_of(device_).stats();
    const auto bytes = [](int64_t count) { return static_cast<double>(count); };
    tensorboard_->add_scalar("mem-reserved-bytes", bytes(stats.reserved_bytes), progress.iteration);
    tensorboard_->add_scalar("mem-allocated-bytes", bytes(stats.allocated_bytes),
                             progress.iteration);
    tensorboard_->add_scalar("mem-max-allocated-bytes", bytes(stats.peak_allocated_bytes),
                             progress.iteration);
  }
}

// The means of the iterations since the last line, in seconds. Timers run on.
void TrainingLog::write_timers(const Progress& progress, double iterations) {
  for (const std::string_view name : interval_timers()) {
    const double seconds = timers_.elapsed(name) / iterations;
    if (seconds <= 0) continue;
    tensorboard_->add_scalar(fmt::format("{}-time", name), seconds, progress.iteration);
  }
}

void TrainingLog::validation(const Progress& progress, const std::string& group,
                             const std::string& prefix, const NamedValues& losses) {
  if (!is_kept_) return;
  line(validation_text(group.empty() ? "validation" : group, prefix, losses));
  for (const auto& [loss, value] : losses) {
    // Compat: the tags of groups are Megatron-DeepSpeed's, the others Megatron-LM's.
    const std::string name =
        group.empty() ? loss : fmt::format("lm-loss-validation/{}/{}", group, loss);
    const double perplexity = std::exp(std::min(20.0, value));
    track(progress.iteration,
          {{name + " validation", value}, {name + " validation ppl", perplexity}});
    if (!tensorboard_) continue;
    const auto add = [&](const std::string& tag, double number) {
      tensorboard_->add_scalar(tag, number, progress.iteration);
      tensorboard_->add_scalar(tag + " vs samples", number, progress.consumed_train_samples);
    };
    add(name + " validation", value);
    if (config_.log_validation_ppl_to_tensorboard) add(name + " validation ppl", perplexity);
  }
}

void TrainingLog::line(const std::string& text) {
  if (!is_kept_) return;
  bar_.clear();
  print_line(text);
}

}  // namespace megatron
