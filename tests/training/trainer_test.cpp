#include "megatron/training/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "megatron/core/error.h"
#include "megatron/device/trace.h"
#include "tests/support/captured_output.h"
#include "tests/training/tiny_training.h"

namespace megatron {
namespace {

using testing::HasSubstr;

TEST(TrainerTest, FinishesEveryIterationInOrder) {
  TinyTraining training{Stream{}};
  Trainer& trainer = training.build();
  for (int64_t i = 1; i <= 3; ++i) {
    trainer.train_step();
    const auto finished = trainer.take_finished();
    ASSERT_TRUE(finished);
    EXPECT_EQ(finished->progress.iteration, i);
    EXPECT_EQ(finished->progress.consumed_train_samples, 4 * i);
    EXPECT_FALSE(trainer.take_finished());
  }
  trainer.finish_step();  // nothing is queued
  EXPECT_FALSE(trainer.take_finished());
}

TEST(TrainerTest, IterationsTakeNoMoreTimeThanAll) {
  const auto begin = std::chrono::steady_clock::now();
  TinyTraining training{Stream{}};
  training.build();
  double sum = 0;
  for (const IterationResult& result : training.results(3)) {
    EXPECT_GT(result.seconds, 0);
    sum += result.seconds;
  }
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  EXPECT_LE(sum, all.count());
}

// Evaluations do a hundred times as much work as iterations here.
TEST(TrainerTest, EvaluationsTakeNoTimeOfIterations) {
  TinyTraining training{Stream{}};
  training.config.eval_iters = 500;
  training.config.eval_interval = 2;
  Trainer& trainer = training.build();
  CapturedStdout printed;
  const auto begin = std::chrono::steady_clock::now();
  trainer.run();
  const std::chrono::duration<double, std::milli> all = std::chrono::steady_clock::now() - begin;
  const std::string text = printed.text();
  EXPECT_THAT(text, HasSubstr("validation loss at iteration 2 |"));
  const std::string name = "elapsed time per iteration (ms): ";
  double sum = 0;
  int lines = 0;
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    sum += std::stod(text.substr(at + name.size()));
    ++lines;
  }
  EXPECT_EQ(lines, 6);
  EXPECT_LT(sum, 0.5 * all.count());
}

TEST(TrainerTest, LearnsAndAdvancesTheSchedule) {
  TinyTraining training{Stream{}};
  training.build();
  const auto results = training.results(6);
  ASSERT_EQ(results.size(), 6u);
  EXPECT_LT(results.back().losses.front().second, results.front().losses.front().second);
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_LT(results[i].learning_rate, results[i - 1].learning_rate);
    EXPECT_TRUE(results[i].grad_norm);
  }
}

TEST(TrainerTest, SkippedIterationsDoNotAdvanceTheSchedule) {
  TinyTraining training(Stream{}, DType::kFloat16);
  training.build();
  const Tensor before = copied(training.weights());
  const auto results = training.results(2);  // the scale begins at 2^32
  for (const IterationResult& result : results) {
    EXPECT_TRUE(result.is_skipped);
    EXPECT_FALSE(result.grad_norm);
    EXPECT_EQ(result.learning_rate, 0.05);
    EXPECT_EQ(result.losses.size(), 1u);
  }
  EXPECT_EQ(results[0].loss_scale, 4294967296.0);
  EXPECT_EQ(results[1].loss_scale, 2147483648.0);
  expect_identical(training.weights(), before);
  EXPECT_EQ(training.progress().consumed_train_samples, 8);
}

TEST(TrainerTest, AGradientThatIsNotFiniteIsNamedAndChangesNothing) {
  TinyTraining training{Stream{}};
  training.task.poisoned_gradient = 3;  // iterations have two microbatches
  Trainer& trainer = training.build();
  trainer.train_step();
  const Tensor before = copied(training.weights());
  EXPECT_THAT(message_of<NotFiniteError>([&] { trainer.train_step(); }),
              testing::AllOf(HasSubstr("iteration 2: gradients have infinite"),
                             HasSubstr("first in table.weight")));
  expect_identical(training.weights(), before);
}

TEST(TrainerTest, ALossThatIsNotANumberIsAnError) {
  TinyTraining training{Stream{}};
  training.task.poisoned_loss = 3;
  Trainer& trainer = training.build();
  trainer.train_step();
  const Tensor before = copied(training.weights());
  EXPECT_THAT(message_of<Error>([&] { trainer.train_step(); }),
              HasSubstr("iteration 2: lm loss is not a number; lower --lr, look at the data around "
                        "sample 4"));
  expect_identical(training.weights(), before);
}

TEST(TrainerTest, WithoutTheCheckTrainingGoesOn) {
  TinyTraining training{Stream{}};
  training.task.poisoned_loss = 3;
  training.config.check_for_nan_in_loss_and_grad = false;
  training.optimizer_config.check_for_nan_in_loss_and_grad = false;
  training.build();
  const auto results = training.results(3);
  ASSERT_EQ(results.size(), 3u);
  for (const IterationResult& result : results) EXPECT_FALSE(result.is_skipped);
}

TEST(TrainerTest, RecordsAMicrobatchOnceTheFirstOnesHaveRun) {
  TinyTraining training{Stream{}};
  training.records_microbatches = true;
  Trainer& trainer = training.build();
  TinyTraining without{Stream{}};
  without.build();
  trainer.train_step();  // two microbatches
  EXPECT_FALSE(trainer.has_recorded_microbatch());
  {
    Tracer tracer;
    const TraceScope scope(&tracer);  // a tracer sees every op
    trainer.train_step();
  }
  EXPECT_FALSE(trainer.has_recorded_microbatch());
  trainer.train_step();
  EXPECT_TRUE(trainer.has_recorded_microbatch());
  {
    Tracer tracer;
    const TraceScope scope(&tracer);
    trainer.train_step();
  }
  EXPECT_TRUE(trainer.has_recorded_microbatch());
  trainer.train_step();
  without.results(5);
  expect_identical(training.weights(), without.weights());
  EXPECT_FALSE(without.trainer->has_recorded_microbatch());
}

TEST(TrainerTest, AMicrobatchOfAnotherShapeRunsBesideTheRecord) {
  TinyTraining training{Stream{}};
  training.records_microbatches = true;
  training.task.shorter = 5;
  training.build();
  TinyTraining without{Stream{}};
  without.task.shorter = 5;
  without.build();
  const auto got = training.results(4);
  const auto want = without.results(4);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].losses, want[i].losses) << i;
  EXPECT_TRUE(training.trainer->has_recorded_microbatch());
  expect_identical(training.weights(), without.weights());
}

TEST(TrainerTest, IterationsToSkipConsumeDataOnly) {
  TinyTraining training{Stream{}};
  training.config.iterations_to_skip = {1};
  training.config.log_params_norm = true;
  training.build();
  const Tensor before = copied(training.weights());
  const auto skipped = training.results(1);
  EXPECT_TRUE(skipped[0].is_skipped);
  EXPECT_TRUE(skipped[0].params_norm);
  expect_identical(training.weights(), before);
  EXPECT_EQ(training.progress().consumed_train_samples, 4);

  const auto trained = training.results(1);
  EXPECT_FALSE(trained[0].is_skipped);
  EXPECT_EQ(trained[0].params_norm, training.state->optimizer.parameter_norm());
}

}  // namespace
}  // namespace megatron
