#include "megatron/training/config.h"

#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "megatron/core/error.h"
#include "megatron/core/number_text.h"
#include "megatron/training/microbatch_calculator.h"

namespace megatron {
namespace {

// More are typing errors, for which the plan of a run would take all time and memory.
constexpr int64_t kMaxMicrobatches = 1'000'000;
constexpr int64_t kMaxRampIterations = 10'000'000;

std::optional<RampupBatchSize> parsed_rampup(const std::vector<std::string>& words) {
  if (words.size() != 3) return std::nullopt;
  const auto start = integer_of(words[0]);
  const auto increment = integer_of(words[1]);
  const auto samples = integer_of(words[2]);
  if (!start || !increment || !samples) return std::nullopt;
  return RampupBatchSize{*start, *increment, *samples};
}

}  // namespace

RampupBatchSize rampup_of(const TrainingConfig& config) {
  const auto rampup = parsed_rampup(config.rampup_batch_size);
  invariant(rampup.has_value(), "--rampup-batch-size was checked by problems()");
  return *rampup;
}

TrainingConfig resolved(TrainingConfig config, int64_t data_parallel_size) {
  const int64_t micro_times_dp = config.micro_batch_size * data_parallel_size;
  if (config.global_batch_size == 0) config.global_batch_size = micro_times_dp;
  if (config.decrease_batch_size_if_needed && micro_times_dp > 0 &&
      config.global_batch_size > micro_times_dp) {
    config.global_batch_size -= config.global_batch_size % micro_times_dp;
  }
  return config;
}

namespace {

// The first batch size of the ramp-up that is not a multiple of a lot.
std::optional<int64_t> batch_that_does_not_divide(const TrainingConfig& config,
                                                  const RampupBatchSize& rampup, int64_t lot) {
  const BatchSizeSchedule schedule = BatchSizeSchedule::rampup(rampup, config.global_batch_size);
  for (int64_t consumed = 0; consumed <= rampup.samples;) {
    const int64_t batch = schedule.at(consumed);
    if (batch % lot != 0) return batch;
    consumed += batch;
  }
  if (config.global_batch_size % lot != 0) return config.global_batch_size;
  return {};
}

}  // namespace

std::vector<std::string> problems(const TrainingConfig& c, int64_t data_parallel_size) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  };
  const auto not_negative = [&](double value, const char* flag) {
    require(value >= 0, fmt::format("{} {} must be at least 0", flag, value));
  };

  if (c.micro_batch_size == 0) {
    found.emplace_back("--micro-batch-size is required; for example --micro-batch-size 4");
  } else if (c.micro_batch_size < 0) {
    found.push_back(
        fmt::format("--micro-batch-size {} must be greater than 0", c.micro_batch_size));
  } else if (c.global_batch_size <= 0) {
    found.push_back(
        fmt::format("--global-batch-size {} must be greater than 0", c.global_batch_size));
  } else {
    const int64_t micro_times_dp = c.micro_batch_size * data_parallel_size;
    require(
        !c.rampup_batch_size.empty() || c.global_batch_size % micro_times_dp == 0,
        fmt::format("--global-batch-size {} must be a multiple of --micro-batch-size {} x data "
                    "parallel size {}; use {}",
                    c.global_batch_size, c.micro_batch_size, data_parallel_size,
                    (c.global_batch_size + micro_times_dp - 1) / micro_times_dp * micro_times_dp));
    require(
        c.global_batch_size / micro_times_dp <= kMaxMicrobatches,
        fmt::format("--global-batch-size {} makes more than {} microbatches; lower it, or raise "
                    "--micro-batch-size {}",
                    c.global_batch_size, kMaxMicrobatches, c.micro_batch_size));
  }
  if (!c.rampup_batch_size.empty()) {
    const auto rampup = parsed_rampup(c.rampup_batch_size);
    if (!rampup) {
      found.emplace_back(
          "--rampup-batch-size needs three integers: start, increment and ramp-up samples; for "
          "example --rampup-batch-size 16 16 5859375");
    } else {
      require(rampup->start > 0 && rampup->increment > 0 && rampup->samples >= 0,
              fmt::format("--rampup-batch-size {} {} {}: start and increment must be greater than "
                          "0, the samples at least 0",
                          rampup->start, rampup->increment, rampup->samples));
      require(rampup->start <= 0 || rampup->samples / rampup->start <= kMaxRampIterations,
              fmt::format("--rampup-batch-size {} {} {}: the ramp-up samples make more than {} "
                          "iterations; lower the last number",
                          rampup->start, rampup->increment, rampup->samples, kMaxRampIterations));
      const int64_t growth = c.global_batch_size - rampup->start;
      require(growth >= 0,
              fmt::format("--rampup-batch-size starts at {}, above --global-batch-size {}; start "
                          "lower",
                          rampup->start, c.global_batch_size));
      require(growth < 0 || rampup->increment <= 0 || growth % rampup->increment == 0,
              fmt::format("--global-batch-size {} cannot be reached from {} in steps of {}; change "
                          "the first two numbers of --rampup-batch-size",
                          c.global_batch_size, rampup->start, rampup->increment));
      if (found.empty() && !c.decrease_batch_size_if_needed) {
        const int64_t lot = c.micro_batch_size * data_parallel_size;
        const std::optional<int64_t> batch = batch_that_does_not_divide(c, *rampup, lot);
        require(!batch,
                fmt::format("--rampup-batch-size {} {} {} reaches a batch of {}, not a multiple "
                            "of --micro-batch-size {} x data parallel size {}; use multiples "
                            "of {}, or give --decrease-batch-size-if-needed",
                            rampup->start, rampup->increment, rampup->samples, batch.value_or(0),
                            c.micro_batch_size, data_parallel_size, lot));
      }
    }
    require(c.train_iters == 0,
            "--rampup-batch-size needs --train-samples instead of --train-iters");
  }

  require(!(c.train_iters != 0 && c.train_samples != 0),
          "--train-iters and --train-samples exclude each other; keep one");
  require(c.skip_train || c.train_iters != 0 || c.train_samples != 0,
          "--train-iters or --train-samples is required; for example --train-iters 1000");
  not_negative(static_cast<double>(c.train_iters), "--train-iters");
  not_negative(static_cast<double>(c.train_samples), "--train-samples");
  not_negative(static_cast<double>(c.exit_interval), "--exit-interval");
  not_negative(static_cast<double>(c.exit_duration_in_mins), "--exit-duration-in-mins");
  not_negative(static_cast<double>(c.eval_iters), "--eval-iters");
  not_negative(static_cast<double>(c.eval_interval), "--eval-interval");
  not_negative(static_cast<double>(c.num_threads), "--num-threads");
  require(c.straggler_minmax_count >= 1,
          fmt::format("--straggler-minmax-count {} must be at least 1", c.straggler_minmax_count));
  not_negative(static_cast<double>(c.check_weight_hash_across_dp_replicas_interval),
               "--check-weight-hash-across-dp-replicas-interval");
  require(c.log_interval > 0,
          fmt::format("--log-interval {} must be greater than 0", c.log_interval));
  require(c.dashboard_port >= 0,
          fmt::format("--dashboard-port {} must be between 1 and 65535", c.dashboard_port));
  require(c.tensorboard_log_interval > 0,
          fmt::format("--tensorboard-log-interval {} must be greater than 0",
                      c.tensorboard_log_interval));
  require(!c.profile || (c.profile_step_start >= 0 && c.profile_step_start < c.profile_step_end),
          fmt::format("--profile-step-start {} must be at least 0 and below --profile-step-end {}",
                      c.profile_step_start, c.profile_step_end));
  require(c.seed > 0, fmt::format("--seed {} must be greater than 0", c.seed));
  require(c.timing_log_level >= 0 && c.timing_log_level <= 2,
          fmt::format("--timing-log-level {} must be 0, 1 or 2", c.timing_log_level));
  return found;
}

}  // namespace megatron
