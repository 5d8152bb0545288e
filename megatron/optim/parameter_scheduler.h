#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "megatron/optim/config.h"

namespace megatron {

// Learning rate and weight decay as functions of the samples of successful updates. All lengths
// here are in samples.
struct LearningRateSchedule {
  double max_lr = 0.0;
  double min_lr = 0.0;
  double warmup_init = 0.0;
  double warmup_steps = 0.0;  // may be fractional: --lr-warmup-fraction
  int64_t decay_steps = 0;
  LrDecayStyle style = LrDecayStyle::kLinear;
  int64_t wsd_decay_steps = 0;  // kWsd: length of the final decay
  WsdDecayStyle wsd_style = WsdDecayStyle::kExponential;
  // Tokens of the first samples. If set, kLinear and kCosine decay with tokens from the end of the
  // warm-up to decay_steps; else with samples.
  std::function<double(double samples)> tokens_of = {};

  // The rate of an update after `num_steps` samples: rises from warmup_init to max_lr, then falls
  // to min_lr at decay_steps and stays there; kConstant stays at max_lr.
  double at(int64_t num_steps) const;
};

struct WeightDecaySchedule {
  double start = 0.0;
  double end = 0.0;
  WeightDecayIncrStyle style = WeightDecayIncrStyle::kConstant;
  int64_t steps = 0;

  double at(int64_t num_steps) const;
};

// The values of one update, before the multipliers of a parameter group.
struct UpdateRates {
  double lr = 0.0;
  double decoupled_lr = 0.0;  // for embedding and output layer; lr without --decoupled-lr
  double weight_decay = 0.0;
};

// The schedules' state in a checkpoint (key `opt_param_scheduler`, in old ones `lr_scheduler`).
struct ParameterSchedulerState {
  double max_lr = 0.0;  // old: `start_lr`
  double min_lr = 0.0;
  double lr_warmup_steps = 0.0;                     // old: `warmup_iter`, `warmup_steps`
  int64_t lr_decay_steps = 0;                       // old: `end_iter`, `decay_steps`
  LrDecayStyle lr_decay_style = {};                 // old: `decay_style`
  int64_t num_steps = 0;                            // old: `num_iters`
  std::optional<WeightDecaySchedule> weight_decay;  // absent in old checkpoints
};

// The rule if a checkpoint and the command line disagree.
enum class SchedulerLoad {
  kMustAgree,       // the difference is an error
  kUseCommandLine,  // --override-opt_param-scheduler
  kUseCheckpoint,   // --use-checkpoint-opt_param-scheduler
};

// The schedules and the current position in them.
class ParameterScheduler {
 public:
  // Throws ConfigError unless 0 <= min_lr <= max_lr, warmup_init <= max_lr, 0 < decay_steps,
  // warmup_steps < decay_steps and 0 <= weight decay start <= end.
  ParameterScheduler(LearningRateSchedule lr, WeightDecaySchedule weight_decay,
                     std::optional<LearningRateSchedule> decoupled_lr = std::nullopt);

  // Call after a successful update on `samples` samples, not after a skipped one.
  void advance(int64_t samples) { num_steps_ += samples; }
  // The rates of the next update.
  UpdateRates rates() const;

  ParameterSchedulerState state() const;
  // num_steps always comes from the checkpoint, the rest according to `load`. With kMustAgree
  // throws ConfigError, which lists every disagreement.
  void load(const ParameterSchedulerState& state, SchedulerLoad load);

 private:
  LearningRateSchedule lr_;
  WeightDecaySchedule weight_decay_;
  std::optional<LearningRateSchedule> decoupled_lr_;
  int64_t num_steps_ = 0;
};

// The length of training; schedules take defaults from it.
struct TrainingLength {
  int64_t train_iters = 0;
  int64_t train_samples = 0;  // not 0: lengths are given in samples, not iterations
  int64_t global_batch_size = 1;
  std::function<double(double samples)> tokens_of = {};  // LearningRateSchedule::tokens_of
};

// The schedules that the flags describe. If lengths are in iterations, they are multiplied by the
// global batch size. Throws like the constructor.
ParameterScheduler make_parameter_scheduler(const OptimizerConfig& config,
                                            const TrainingLength& length);
SchedulerLoad scheduler_load_of(const OptimizerConfig& config);

// The values of --lr-decay-style and --weight-decay-incr-style, as stored in checkpoints.
std::string_view name_of(LrDecayStyle style);
std::string_view name_of(WeightDecayIncrStyle style);
std::optional<LrDecayStyle> lr_decay_style_of(std::string_view name);
std::optional<WeightDecayIncrStyle> weight_decay_incr_style_of(std::string_view name);

}  // namespace megatron
