#include "megatron/training/training_log.h"

#include <gmock/gmock.h>

#include <map>

#include "megatron/core/file.h"
#include "tests/support/temporary_directory.h"
#include "tests/training/tensorboard_events.h"

namespace megatron {
namespace {

using testing::Contains;
using testing::Key;
using testing::Not;
using testing::Pair;

// What a run of two iterations writes: scalars as "tag at step", texts by tag.
struct Written {
  std::map<std::string, float> scalars;
  std::map<std::string, std::string> texts;
  std::string hyperparameters = {};
};

Written written_by(const TrainingConfig& training) {
  const TemporaryDirectory directory;
  RunConfig run;
  run.training = training;
  run.settings = {{"lr", 1e-3}, {"hidden_size", int64_t{32}}};
  run.training.tensorboard_dir = directory.path().string();
  run.training.log_interval = 2;
  TrainingLog log(run, 2, {}, Device{}, 8, true);
  for (int64_t i = 1; i <= 2; ++i) {
    { const TimerScope scope(log.timers(), "optimizer", 1); }
    IterationResult result;
    result.losses = {{"lm loss", 2.5}};
    result.floating_point_operations = 1e9;
    result.seconds = static_cast<double>(i);
    log.iteration({.iteration = i, .consumed_train_samples = 4 * i}, result);
  }
  Written written;
  for (const tensorboard::Event& event : events_of(read_text(log.tensorboard()->path()))) {
    for (const auto& value : event.summary().value()) {
      if (value.metadata().plugin_data().plugin_name() == "hparams") {
        written.hyperparameters = value.metadata().plugin_data().content();
      } else if (value.has_tensor()) {
        written.texts[value.tag()] = value.tensor().string_val(0);
      } else {
        written.scalars[value.tag() + " at " + std::to_string(event.step())] = value.simple_value();
      }
    }
  }
  return written;
}

TEST(TrainingLogTest, Fp16ExplainsTheFirstSkippedIteration) {
  const auto printed = [](bool fp16, double loss_scale) {
    RunConfig run;
    run.optimizer.fp16 = fp16;
    run.optimizer.loss_scale = loss_scale;
    run.training.log_interval = 0;
    testing::internal::CaptureStdout();
    TrainingLog log(run, 4, {}, Device{}, 1, true);
    IterationResult result;
    result.losses = {{"lm loss", 2.5}};
    result.is_skipped = true;  // by --iterations-to-skip
    log.iteration({.iteration = 1}, result);
    result.overflows = true;
    log.iteration({.iteration = 2}, result);
    log.iteration({.iteration = 3}, result);
    return testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(printed(true, 0),
            "iteration 2 is skipped: fp16 gradients overflow; the first iterations search the "
            "largest loss scale without one, from --initial-loss-scale 4294967296 down\n");
  EXPECT_THAT(printed(true, 1024), testing::StartsWith("iteration 2 is skipped: fp16 gradients "
                                                       "overflow at --loss-scale 1024; "));
  EXPECT_EQ(printed(false, 0), "");
}

TEST(TrainingLogTest, TensorBoardHasTheSettings) {
  EXPECT_THAT(written_by({}).texts, testing::ElementsAre(Pair("hidden_size/text_summary", "32"),
                                                         Pair("lr/text_summary", "0.001")));
}

TEST(TrainingLogTest, TensorBoardHasTheHyperparameters) {
  tensorboard::HyperparameterContent content;
  ASSERT_TRUE(content.ParseFromString(written_by({}).hyperparameters));
  const auto& values = content.session_start_info().hparams();
  EXPECT_EQ(values.at("lr").number_value(), 1e-3);
  EXPECT_EQ(values.at("hidden_size").number_value(), 32);
}

TEST(TrainingLogTest, TheThroughputIsThatOfOneRank) {
  TrainingConfig config;
  config.log_throughput = config.log_timers_to_tensorboard = true;
  const Written written = written_by(config);
  constexpr double kOperations = 1e9;  // of an iteration, on 8 ranks
  EXPECT_NEAR(written.scalars.at("throughput at 2") * written.scalars.at("iteration-time at 2"),
              kOperations / 8 / 1e12, 1e-7);
}

TEST(TrainingLogTest, TensorBoardHasTheNumberOfRanks) {
  TrainingConfig config;
  config.log_world_size_to_tensorboard = true;
  EXPECT_THAT(written_by(config).scalars, Contains(Pair("world-size at 1", 8)));
}

TEST(TrainingLogTest, TensorBoardHasTimesOnRequest) {
  TrainingConfig config;
  config.timing_log_level = 1;
  config.log_throughput = true;
  EXPECT_THAT(written_by(config).scalars, Not(Contains(Key("iteration-time at 2"))));
  config.log_timers_to_tensorboard = true;
  const Written written = written_by(config);
  EXPECT_THAT(written.scalars,
              testing::IsSupersetOf({Key("iteration-time at 2"), Key("throughput at 2"),
                                     Key("optimizer-time at 1"), Key("optimizer-time at 2")}));
  EXPECT_FLOAT_EQ(written.scalars.at("iteration-time at 2"), 1.5f);  // of 1 and 2 s
}

}  // namespace
}  // namespace megatron
