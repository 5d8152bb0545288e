#include "megatron/training/microbatch_calculator.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "megatron/core/error.h"
#include "megatron/core/number_text.h"

namespace megatron {
namespace {

constexpr std::string_view kStepFlag = "--step-batch-size-schedule";

std::optional<double> unit_of(char suffix) {
  switch (suffix) {
    case 'K':
    case 'k':
      return 1e3;
    case 'M':
    case 'm':
      return 1e6;
    case 'B':
    case 'b':
      return 1e9;
    case 'T':
    case 't':
      return 1e12;
    default:
      return std::nullopt;
  }
}

// "1.5B" -> 1500000000
std::optional<int64_t> tokens_of(std::string_view text) {
  double unit = 1.0;
  if (!text.empty()) {
    if (const auto suffix = unit_of(text.back())) {
      unit = *suffix;
      text.remove_suffix(1);
    }
  }
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0.0) return std::nullopt;
  return static_cast<int64_t>(value * unit);
}

std::vector<std::string_view> words_of(std::string_view text) {
  constexpr std::string_view kSeparators = " ,\t\n";
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = text.find_first_not_of(kSeparators);
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const size_t length = std::min(text.find_first_of(kSeparators), text.size());
    words.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
}

}  // namespace

// The length of the ramp-up in iterations and samples.
struct BatchSizeSchedule::Ramp {
  int64_t iterations = 0;
  int64_t consumed = 0;
};

BatchSizeSchedule BatchSizeSchedule::constant(int64_t batch_size) {
  BatchSizeSchedule schedule;
  schedule.final_batch_size_ = batch_size;
  return schedule;
}

BatchSizeSchedule BatchSizeSchedule::rampup(const RampupBatchSize& ramp, int64_t batch_size) {
  const int64_t growth = batch_size - ramp.start;
  if (ramp.start <= 0 || ramp.increment <= 0 || ramp.samples < 0 || growth < 0 ||
      growth % ramp.increment != 0) {
    throw ConfigError(fmt::format(
        "--rampup-batch-size {} {} {}: --global-batch-size {} must be the start plus a multiple of "
        "the increment; change one of them",
        ramp.start, ramp.increment, ramp.samples, batch_size));
  }
  BatchSizeSchedule schedule = constant(batch_size);
  if (growth > 0 && ramp.samples > 0) schedule.ramp_ = ramp;
  return schedule;
}

BatchSizeSchedule BatchSizeSchedule::steps(const std::string& entries, int64_t seq_length) {
  BatchSizeSchedule schedule;
  for (const std::string_view word : words_of(entries)) {
    const size_t colon = word.find(':');
    const auto tokens = tokens_of(word.substr(0, colon));
    const auto batch =
        colon == std::string_view::npos ? std::nullopt : integer_of(word.substr(colon + 1));
    if (!tokens || !batch || *batch <= 0) {
      throw ConfigError(fmt::format("{}: entry \"{}\" is not threshold:batch, such as 100B:1536",
                                    kStepFlag, word));
    }
    const int64_t from = *tokens / seq_length;
    if (schedule.steps_.empty() ? from != 0 : from <= schedule.steps_.back().from_samples) {
      throw ConfigError(fmt::format(
          "{}: the threshold of \"{}\" is sample {}; thresholds must begin with 0 and rise "
          "strictly in samples of {} tokens",
          kStepFlag, word, from, seq_length));
    }
    schedule.steps_.push_back({from, *batch});
  }
  if (schedule.steps_.empty()) {
    throw ConfigError(
        fmt::format("{} is empty; give entries such as \"0:512 100B:1536\"", kStepFlag));
  }
  schedule.final_batch_size_ = schedule.steps_.back().batch_size;
  return schedule;
}

int64_t BatchSizeSchedule::at(int64_t consumed_samples) const {
  if (!steps_.empty()) {
    const auto next = std::upper_bound(
        steps_.begin(), steps_.end(), consumed_samples,
        [](int64_t samples, const Step& step) { return samples < step.from_samples; });
    return next == steps_.begin() ? next->batch_size : std::prev(next)->batch_size;
  }
  if (!ramp_ || consumed_samples > ramp_->samples) return final_batch_size_;
  const int64_t num_increments = (final_batch_size_ - ramp_->start) / ramp_->increment;
  const double samples_per_increment =
      static_cast<double>(ramp_->samples) / static_cast<double>(num_increments);
  const auto increments =
      static_cast<int64_t>(static_cast<double>(consumed_samples) / samples_per_increment);
  return ramp_->start + increments * ramp_->increment;
}

int64_t BatchSizeSchedule::train_iters(int64_t train_samples) const {
  if (!steps_.empty()) {
    int64_t iterations = 0;
    int64_t consumed = 0;
    for (size_t i = 0; i < steps_.size() && consumed < train_samples; ++i) {
      const bool is_last = i + 1 == steps_.size();
      const int64_t until =
          is_last ? train_samples : std::min(train_samples, steps_[i + 1].from_samples);
      const int64_t batch = steps_[i].batch_size;
      const int64_t count = std::max<int64_t>(0, (until - consumed + batch - 1) / batch);
      iterations += count;
      consumed += count * batch;
    }
    return iterations;
  }
  const Ramp ramp = whole_ramp();
  return ramp.iterations + std::max<int64_t>(0, train_samples - ramp.consumed) / final_batch_size_;
}

int64_t BatchSizeSchedule::train_iters_as_deepspeed(int64_t train_samples) const {
  const Ramp ramp = whole_ramp();
  const int64_t rest = train_samples - ramp.consumed;
  const int64_t batch = final_batch_size_;
  const int64_t floored = rest >= 0 ? rest / batch : -((batch - 1 - rest) / batch);
  return std::max<int64_t>(0, ramp.iterations + floored);
}

BatchSizeSchedule::Ramp BatchSizeSchedule::whole_ramp() const {
  Ramp ramp;
  if (!ramp_) return ramp;
  while (ramp.consumed <= ramp_->samples) {
    ramp.consumed += at(ramp.consumed);
    ++ramp.iterations;
  }
  return ramp;
}

int64_t BatchSizeSchedule::samples_of(int64_t iterations) const {
  const int64_t last_change = ramp_            ? ramp_->samples
                              : steps_.empty() ? -1
                                               : steps_.back().from_samples - 1;
  int64_t consumed = 0;
  while (iterations > 0 && consumed <= last_change) {
    consumed += at(consumed);
    --iterations;
  }
  return consumed + iterations * final_batch_size_;
}

MicrobatchCalculator::MicrobatchCalculator(BatchSizeSchedule schedule, int64_t micro_batch_size,
                                           int64_t data_parallel_size, bool decrease_if_needed)
    : schedule_(std::move(schedule)),
      micro_times_dp_(micro_batch_size * data_parallel_size),
      decrease_if_needed_(decrease_if_needed) {
  invariant(micro_times_dp_ > 0, "micro batch size and data parallel size are positive");
  update(0, /*check=*/schedule_.is_constant());
}

void MicrobatchCalculator::update(int64_t consumed_samples, bool check) {
  const int64_t batch_size = schedule_.at(consumed_samples);
  if (check && !decrease_if_needed_ && batch_size % micro_times_dp_ != 0) {
    throw ConfigError(fmt::format(
        "global batch size {} after {} samples must be a multiple of --micro-batch-size times the "
        "data parallel size, {}; change the batch sizes or give --decrease-batch-size-if-needed",
        batch_size, consumed_samples, micro_times_dp_));
  }
  num_microbatches_ = batch_size / micro_times_dp_;
  if (check && num_microbatches_ < 1) {
    throw ConfigError(fmt::format(
        "global batch size {} is smaller than --micro-batch-size times the data parallel size, {}; "
        "lower --micro-batch-size",
        batch_size, micro_times_dp_));
  }
}

BatchSizeSchedule batch_size_schedule_of(const TrainingConfig& config) {
  if (config.rampup_batch_size.empty()) {
    return BatchSizeSchedule::constant(config.global_batch_size);
  }
  return BatchSizeSchedule::rampup(rampup_of(config), config.global_batch_size);
}

MicrobatchCalculator make_microbatch_calculator(const TrainingConfig& config,
                                                int64_t data_parallel_size) {
  return {batch_size_schedule_of(config), config.micro_batch_size, data_parallel_size,
          config.decrease_batch_size_if_needed};
}

int64_t train_iters_of(const TrainingConfig& config) {
  if (config.train_samples == 0) return config.train_iters;
  const BatchSizeSchedule schedule = batch_size_schedule_of(config);
  return config.deepspeed && !schedule.is_constant()
             ? schedule.train_iters_as_deepspeed(config.train_samples)
             : schedule.train_iters(config.train_samples);
}

SampleCounts dataset_sizes_of(const TrainingConfig& config) {
  const int64_t train_iters = train_iters_of(config);
  const int64_t batch = config.global_batch_size;
  const int64_t evaluations = config.eval_interval > 0 ? train_iters / config.eval_interval + 1 : 1;
  // A ramp-up longer than the training consumes more than --train-samples.
  const int64_t train =
      config.train_samples == 0
          ? train_iters * batch
          : std::max(config.train_samples, batch_size_schedule_of(config).samples_of(train_iters));
  return {.train = train,
          .valid = evaluations * config.eval_iters * batch,
          .test = config.eval_iters * batch};
}

ConsumedSamples consumed_at_iteration(const TrainingConfig& config, int64_t iteration) {
  const int64_t evaluations = config.eval_interval > 0 ? iteration / config.eval_interval : 0;
  return {.train = config.train_samples == 0 ? iteration * config.global_batch_size : 0,
          .valid = evaluations * config.eval_iters * config.global_batch_size};
}

}  // namespace megatron
