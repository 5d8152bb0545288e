#include "megatron/optim/parameter_scheduler.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"
#include "tests/optim/golden_log.h"

// tests/cases/schedules.txt has the rates of every style.
namespace megatron {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

LearningRateSchedule schedule_of(LrDecayStyle style) {
  return {.max_lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 100, .decay_steps = 1000, .style = style};
}

TEST(LearningRateTest, WarmsUpFromItsInitialValue) {
  LearningRateSchedule schedule = schedule_of(LrDecayStyle::kLinear);
  schedule.warmup_init = 2e-4;
  EXPECT_EQ(schedule.at(0), 2e-4);
  EXPECT_NEAR(schedule.at(50), 6e-4, 1e-15);
  schedule.warmup_steps = 0;
  EXPECT_EQ(schedule.at(0), 1e-3);
}

OptimizerConfig golden_config() {
  OptimizerConfig config;
  config.lr = 1e-3;
  config.min_lr = 1e-4;
  config.lr_decay_style = LrDecayStyle::kCosine;
  config.lr_decay_iters = 20;
  config.lr_warmup_iters = 4;
  config.weight_decay = 0.1;
  return resolved(config);
}
const TrainingLength kGoldenLength{.train_iters = 20, .train_samples = 0, .global_batch_size = 8};

// The log shows the rate of the next update.
TEST(ParameterSchedulerTest, FollowsTheLearningRatesOfRealRuns) {
  for (const char* run : {"gpt", "fp16"}) {
    ParameterScheduler scheduler = make_parameter_scheduler(golden_config(), kGoldenLength);
    EXPECT_EQ(scheduler.rates().lr, 0.0);
    for (const LoggedIteration& iteration : logged_iterations(run)) {
      if (iteration.number("number of skipped iterations") == 0) scheduler.advance(8);
      EXPECT_EQ(fmt::format("{:.3E}", scheduler.rates().lr), iteration.text("learning rate"))
          << iteration.line;
      EXPECT_EQ(scheduler.rates().weight_decay, 0.1);
    }
  }
}

TEST(ParameterSchedulerTest, LengthsInSamplesAndFractions) {
  OptimizerConfig config = golden_config();
  config.lr_decay_samples = 0;
  config.lr_warmup_fraction = 0.125;
  config.lr_warmup_iters = 0;
  const auto scheduler = make_parameter_scheduler(
      config, {.train_iters = 0, .train_samples = 100, .global_batch_size = 8});
  EXPECT_EQ(scheduler.state().lr_decay_steps, 100);
  EXPECT_EQ(scheduler.state().lr_warmup_steps, 12.5);
  EXPECT_EQ(scheduler.state().weight_decay->steps, 100);
}

// Samples of one token up to the tenth, then of three.
TEST(ParameterSchedulerTest, DecaysWithTokensWhereLengthsChange) {
  OptimizerConfig config;
  config.lr = 1;
  config.lr_warmup_samples = 5;
  config.lr_decay_samples = 20;
  config.lr_decay_style = LrDecayStyle::kLinear;
  const auto tokens_of = [](double samples) {
    return samples <= 10 ? samples : 10 + 3 * (samples - 10);
  };
  const auto rate_at = [&](int64_t samples) {
    ParameterScheduler scheduler = make_parameter_scheduler(
        config, {.train_samples = 30, .global_batch_size = 1, .tokens_of = tokens_of});
    scheduler.advance(samples);
    return scheduler.rates().lr;
  };
  EXPECT_DOUBLE_EQ(rate_at(4), 0.8);  // the warm-up counts samples
  EXPECT_DOUBLE_EQ(rate_at(10), 1 - 5.0 / 35);
  EXPECT_DOUBLE_EQ(rate_at(15), 1 - 20.0 / 35);
  EXPECT_DOUBLE_EQ(rate_at(20), 0);
  EXPECT_DOUBLE_EQ(rate_at(21), 0);
}

TEST(ParameterSchedulerTest, DecoupledRatesHaveTheirOwnPeakAndFloor) {
  OptimizerConfig config = golden_config();
  config.decoupled_lr = 5e-3;
  config.decoupled_min_lr = 5e-4;
  auto scheduler = make_parameter_scheduler(config, kGoldenLength);
  scheduler.advance(32);
  EXPECT_DOUBLE_EQ(scheduler.rates().lr, 1e-3);
  EXPECT_DOUBLE_EQ(scheduler.rates().decoupled_lr, 5e-3);
  scheduler.advance(200);
  EXPECT_EQ(scheduler.rates().lr, 1e-4);
  EXPECT_EQ(scheduler.rates().decoupled_lr, 5e-4);
}

TEST(ParameterSchedulerTest, RejectsImpossibleSchedules) {
  const auto make = [](auto change) {
    LearningRateSchedule lr = schedule_of(LrDecayStyle::kLinear);
    WeightDecaySchedule weight_decay;
    change(lr, weight_decay);
    ParameterScheduler(lr, weight_decay);
  };
  const auto expect_problem = [&](auto change, const char* words) {
    EXPECT_THAT([&] { make(change); }, ThrowsMessage<ConfigError>(HasSubstr(words)));
  };
  using Lr = LearningRateSchedule;
  using Wd = WeightDecaySchedule;
  expect_problem([](Lr& lr, Wd&) { lr.min_lr = -1; }, "--min-lr -1");
  expect_problem([](Lr& lr, Wd&) { lr.max_lr = 1e-5; }, "--lr 1e-05 must be at least");
  expect_problem([](Lr& lr, Wd&) { lr.warmup_init = 1; }, "--lr-warmup-init 1");
  expect_problem([](Lr& lr, Wd&) { lr.decay_steps = 0; }, "decays over 0 samples");
  expect_problem([](Lr& lr, Wd&) { lr.warmup_steps = 1000; }, "shorter than the decay of 1000");
  expect_problem([](Lr& lr, Wd&) { lr.style = LrDecayStyle::kWsd; }, "--lr-wsd-decay-iters");
  expect_problem([](Lr&, Wd& wd) { wd.start = 1; }, "weight decay from 1 to 0");
}

TEST(ParameterSchedulerTest, ContinuesFromItsState) {
  auto first = make_parameter_scheduler(golden_config(), kGoldenLength);
  first.advance(80);
  auto second = make_parameter_scheduler(golden_config(), kGoldenLength);
  second.load(first.state(), SchedulerLoad::kMustAgree);
  EXPECT_EQ(second.rates().lr, first.rates().lr);
  EXPECT_EQ(second.state().num_steps, 80);
}

TEST(ParameterSchedulerTest, FlagsDecideWhoWinsADisagreement) {
  OptimizerConfig config = golden_config();
  ParameterSchedulerState state = make_parameter_scheduler(config, kGoldenLength).state();
  state.num_steps = 80;
  state.max_lr = 2e-3;
  state.lr_decay_style = LrDecayStyle::kLinear;
  state.weight_decay->end = 0.2;

  auto scheduler = make_parameter_scheduler(config, kGoldenLength);
  EXPECT_THAT([&] { scheduler.load(state, scheduler_load_of(config)); },
              ThrowsMessage<ConfigError>(AllOf(
                  HasSubstr("learning rate: the command line has 0.001, the checkpoint 0.002"),
                  HasSubstr("cosine"), HasSubstr("end weight decay"), Not(HasSubstr("warmup")))));

  config.use_checkpoint_opt_param_scheduler = true;
  scheduler.load(state, scheduler_load_of(config));
  EXPECT_EQ(scheduler.state().max_lr, 2e-3);
  EXPECT_EQ(scheduler.state().lr_decay_style, LrDecayStyle::kLinear);
  EXPECT_EQ(scheduler.state().num_steps, 80);
  EXPECT_EQ(scheduler.rates().weight_decay, 0.2);

  config = golden_config();
  config.override_opt_param_scheduler = true;
  auto overriding = make_parameter_scheduler(config, kGoldenLength);
  overriding.load(state, scheduler_load_of(config));
  EXPECT_EQ(overriding.state().max_lr, 1e-3);
  EXPECT_EQ(overriding.state().num_steps, 80);
  EXPECT_EQ(overriding.rates().weight_decay, 0.1);
}

TEST(ParameterSchedulerTest, StylesHaveTheNamesOfCheckpoints) {
  for (const char* name : {"constant", "linear", "cosine", "inverse-square-root", "WSD"}) {
    EXPECT_EQ(name_of(*lr_decay_style_of(name)), name);
  }
  for (const char* name : {"constant", "linear", "cosine"}) {
    EXPECT_EQ(name_of(*weight_decay_incr_style_of(name)), name);
  }
  EXPECT_FALSE(lr_decay_style_of("sine"));
}

}  // namespace
}  // namespace megatron
