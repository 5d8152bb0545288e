#include "megatron/optim/parameter_scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "megatron/core/error.h"

namespace megatron {
namespace {

double falling_cosine(double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0); }

// Falls from 1 at ratio 0 to 0 at ratio 1.
double wsd_coefficient(WsdDecayStyle style, double ratio) {
  switch (style) {
    case WsdDecayStyle::kExponential:
      return 2.0 * std::pow(0.5, ratio) - 1.0;
    case WsdDecayStyle::kLinear:
      return 1.0 - ratio;
    case WsdDecayStyle::kCosine:
      return falling_cosine(ratio);
    case WsdDecayStyle::kMinusSqrt:
      return 1.0 - std::sqrt(ratio);
  }
  return 0.0;
}

struct LrStyleName {
  LrDecayStyle style;
  std::string_view name;
};
constexpr std::array<LrStyleName, 5> kLrStyles = {{
    {LrDecayStyle::kConstant, "constant"},
    {LrDecayStyle::kLinear, "linear"},
    {LrDecayStyle::kCosine, "cosine"},
    {LrDecayStyle::kInverseSquareRoot, "inverse-square-root"},
    {LrDecayStyle::kWsd, "WSD"},
}};

struct WeightDecayStyleName {
  WeightDecayIncrStyle style;
  std::string_view name;
};
constexpr std::array<WeightDecayStyleName, 3> kWeightDecayStyles = {{
    {WeightDecayIncrStyle::kConstant, "constant"},
    {WeightDecayIncrStyle::kLinear, "linear"},
    {WeightDecayIncrStyle::kCosine, "cosine"},
}};

template <class Table, class Style>
std::string_view name_in(const Table& table, Style style) {
  const auto row = std::find_if(table.begin(), table.end(),
                                [style](const auto& entry) { return entry.style == style; });
  invariant(row != table.end(), "every style has a name");
  return row->name;
}

std::vector<std::string> problems(const LearningRateSchedule& s) {
  std::vector<std::string> found;
  const auto require = [&](bool holds, std::string problem) {
    if (!holds) found.push_back(std::move(problem));
  };
  require(s.min_lr >= 0.0, fmt::format("--min-lr {} must be at least 0", s.min_lr));
  require(s.max_lr >= s.min_lr,
          fmt::format("--lr {} must be at least --min-lr {}; raise --lr", s.max_lr, s.min_lr));
  require(s.warmup_init <= s.max_lr,
          fmt::format("--lr-warmup-init {} must not exceed --lr {}", s.warmup_init, s.max_lr));
  require(s.decay_steps > 0,
          fmt::format("the learning rate decays over {} samples; give --train-iters, "
                      "--train-samples, --lr-decay-iters or --lr-decay-samples",
                      s.decay_steps));
  require(s.warmup_steps < static_cast<double>(s.decay_steps) || s.decay_steps <= 0,
          fmt::format("learning rate warmup of {} samples must be shorter than the decay of {}; "
                      "lower --lr-warmup-iters, --lr-warmup-samples or --lr-warmup-fraction",
                      s.warmup_steps, s.decay_steps));
  require(s.style != LrDecayStyle::kWsd ||
              (s.wsd_decay_steps > 0 && s.wsd_decay_steps <= s.decay_steps),
          fmt::format("--lr-decay-style WSD: the final decay of {} samples must be in [1, {}]; set "
                      "--lr-wsd-decay-iters or --lr-wsd-decay-samples",
                      s.wsd_decay_steps, s.decay_steps));
  return found;
}

}  // namespace

double LearningRateSchedule::at(int64_t num_steps) const {
  const auto k = static_cast<double>(num_steps);
  const auto decay = static_cast<double>(decay_steps);
  if (warmup_steps > 0.0 && k <= warmup_steps) {
    return warmup_init + (max_lr - warmup_init) * k / warmup_steps;
  }
  if (style == LrDecayStyle::kConstant) return max_lr;
  if (num_steps > decay_steps) return min_lr;
  if (style == LrDecayStyle::kInverseSquareRoot) {
    const double rate =
        max_lr * std::sqrt(std::max(warmup_steps, 1.0)) / std::sqrt(std::max(k, 1.0));
    return std::max(min_lr, rate);
  }
  const double range = max_lr - min_lr;
  const auto position = [&](double samples) { return tokens_of ? tokens_of(samples) : samples; };
  const double begin = position(warmup_steps);
  const double ratio = (position(k) - begin) / (position(decay) - begin);
  if (style == LrDecayStyle::kLinear) return min_lr + (1.0 - ratio) * range;
  if (style == LrDecayStyle::kCosine) return min_lr + falling_cosine(ratio) * range;
  const auto wsd = static_cast<double>(wsd_decay_steps);
  if (k <= decay - wsd) return max_lr;
  return min_lr + wsd_coefficient(wsd_style, (k - (decay - wsd)) / wsd) * range;
}

double WeightDecaySchedule::at(int64_t num_steps) const {
  if (num_steps > steps || style == WeightDecayIncrStyle::kConstant) return end;
  const double ratio =
      steps == 0 ? 1.0 : static_cast<double>(num_steps) / static_cast<double>(steps);
  const double done = style == WeightDecayIncrStyle::kLinear ? ratio : falling_cosine(1.0 - ratio);
  return start + done * (end - start);
}

ParameterScheduler::ParameterScheduler(LearningRateSchedule lr, WeightDecaySchedule weight_decay,
                                       std::optional<LearningRateSchedule> decoupled_lr)
    : lr_(lr), weight_decay_(weight_decay), decoupled_lr_(decoupled_lr) {
  std::vector<std::string> found = problems(lr_);
  if (decoupled_lr_ && decoupled_lr_->max_lr < decoupled_lr_->min_lr) {
    found.push_back(
        fmt::format("--decoupled-lr {} must be at least its floor {}; lower "
                    "--decoupled-min-lr",
                    decoupled_lr_->max_lr, decoupled_lr_->min_lr));
  }
  if (weight_decay_.start < 0.0 || weight_decay_.end < weight_decay_.start) {
    found.push_back(
        fmt::format("weight decay from {} to {} must not be negative nor fall; change "
                    "--start-weight-decay or --end-weight-decay",
                    weight_decay_.start, weight_decay_.end));
  }
  if (!found.empty()) throw ConfigError(found);
}

UpdateRates ParameterScheduler::rates() const {
  const double lr = lr_.at(num_steps_);
  return {.lr = lr,
          .decoupled_lr = decoupled_lr_ ? decoupled_lr_->at(num_steps_) : lr,
          .weight_decay = weight_decay_.at(num_steps_)};
}

ParameterSchedulerState ParameterScheduler::state() const {
  return {.max_lr = lr_.max_lr,
          .min_lr = lr_.min_lr,
          .lr_warmup_steps = lr_.warmup_steps,
          .lr_decay_steps = lr_.decay_steps,
          .lr_decay_style = lr_.style,
          .num_steps = num_steps_,
          .weight_decay = weight_decay_};
}

void ParameterScheduler::load(const ParameterSchedulerState& state, SchedulerLoad load) {
  std::vector<std::string> differences;
  const auto take = [&](auto& ours, const auto& theirs, std::string_view name, const auto& text) {
    if (load == SchedulerLoad::kUseCommandLine || ours == theirs) return;
    if (load == SchedulerLoad::kUseCheckpoint) {
      ours = theirs;
    } else {
      differences.push_back(
          fmt::format("{}: the command line has {}, the checkpoint {}; choose with "
                      "--override-opt_param-scheduler or --use-checkpoint-opt_param-scheduler",
                      name, text(ours), text(theirs)));
    }
  };
  const auto number = [](auto value) { return fmt::format("{}", value); };
  const auto style = [](auto value) { return std::string(name_of(value)); };
  take(lr_.max_lr, state.max_lr, "learning rate", number);
  take(lr_.min_lr, state.min_lr, "minimum learning rate", number);
  take(lr_.warmup_steps, state.lr_warmup_steps, "warmup samples", number);
  take(lr_.decay_steps, state.lr_decay_steps, "learning rate decay samples", number);
  take(lr_.style, state.lr_decay_style, "learning rate decay style", style);
  if (state.weight_decay) {
    take(weight_decay_.start, state.weight_decay->start, "start weight decay", number);
    take(weight_decay_.end, state.weight_decay->end, "end weight decay", number);
    // The length of a constant schedule has no effect, so a longer training may continue it.
    constexpr auto kConstant = WeightDecayIncrStyle::kConstant;
    if (weight_decay_.style != kConstant || state.weight_decay->style != kConstant) {
      take(weight_decay_.steps, state.weight_decay->steps, "weight decay samples", number);
    }
    take(weight_decay_.style, state.weight_decay->style, "weight decay increment style", style);
  }
  if (!differences.empty()) throw ConfigError(differences);
  if (decoupled_lr_) {  // it has only its own peak and floor
    decoupled_lr_->warmup_steps = lr_.warmup_steps;
    decoupled_lr_->decay_steps = lr_.decay_steps;
    decoupled_lr_->style = lr_.style;
  }
  num_steps_ = state.num_steps;
}

ParameterScheduler make_parameter_scheduler(const OptimizerConfig& config,
                                            const TrainingLength& length) {
  const bool in_samples = length.train_samples != 0;
  const int64_t batch = length.global_batch_size;
  const auto samples_of = [&](int64_t iters, int64_t samples) {
    return in_samples ? samples : iters * batch;
  };
  const int64_t training = samples_of(length.train_iters, length.train_samples);

  LearningRateSchedule lr;
  lr.max_lr = config.lr;
  lr.min_lr = config.min_lr;
  lr.warmup_init = config.lr_warmup_init;
  lr.decay_steps = samples_of(config.lr_decay_iters, config.lr_decay_samples);
  if (lr.decay_steps == 0) lr.decay_steps = training;
  lr.warmup_steps =
      config.lr_warmup_fraction
          ? *config.lr_warmup_fraction * static_cast<double>(lr.decay_steps)
          : static_cast<double>(samples_of(config.lr_warmup_iters, config.lr_warmup_samples));
  lr.style = config.lr_decay_style;
  lr.wsd_decay_steps = samples_of(config.lr_wsd_decay_iters, config.lr_wsd_decay_samples);
  lr.wsd_style = config.lr_wsd_decay_style;
  lr.tokens_of = length.tokens_of;

  std::optional<LearningRateSchedule> decoupled;
  if (config.decoupled_lr) {
    decoupled = lr;
    decoupled->max_lr = *config.decoupled_lr;
    decoupled->min_lr = config.decoupled_min_lr.value_or(config.min_lr);
  }
  const WeightDecaySchedule weight_decay{
      .start = config.start_weight_decay.value_or(config.weight_decay),
      .end = config.end_weight_decay.value_or(config.weight_decay),
      .style = config.weight_decay_incr_style,
      .steps = training};
  return {lr, weight_decay, decoupled};
}

SchedulerLoad scheduler_load_of(const OptimizerConfig& config) {
  if (config.override_opt_param_scheduler) return SchedulerLoad::kUseCommandLine;
  if (config.use_checkpoint_opt_param_scheduler) return SchedulerLoad::kUseCheckpoint;
  return SchedulerLoad::kMustAgree;
}

std::string_view name_of(LrDecayStyle style) { return name_in(kLrStyles, style); }
std::string_view name_of(WeightDecayIncrStyle style) { return name_in(kWeightDecayStyles, style); }

std::optional<LrDecayStyle> lr_decay_style_of(std::string_view name) {
  for (const auto& row : kLrStyles) {
    if (row.name == name) return row.style;
  }
  return std::nullopt;
}

std::optional<WeightDecayIncrStyle> weight_decay_incr_style_of(std::string_view name) {
  for (const auto& row : kWeightDecayStyles) {
    if (row.name == name) return row.style;
  }
  return std::nullopt;
}

}  // namespace megatron
