#include "megatron/training/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "megatron/core/error.h"
#include "megatron/device/stream.h"
#include "tests/support/captured_output.h"
#include "tests/support/device_under_test.h"
#include "tests/training/tiny_training.h"

namespace megatron {
namespace {

using testing::HasSubstr;

class CudaTrainerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_device_under_test()) GTEST_SKIP() << "no GPU: not run";
    use_device({DeviceType::kCuda, 0});
  }
  static Stream stream() { return stream_under_test(); }
};

TEST_F(CudaTrainerTest, ReadsAnIterationWhileTheNextOneRuns) {
  TinyTraining training(stream());
  Trainer& trainer = training.build();
  trainer.train_step();
  EXPECT_FALSE(trainer.take_finished());
  for (int64_t i = 2; i <= 4; ++i) {
    trainer.train_step();
    const auto finished = trainer.take_finished();
    ASSERT_TRUE(finished);
    EXPECT_EQ(finished->progress.iteration, i - 1);
    EXPECT_EQ(finished->progress.consumed_train_samples, 4 * (i - 1));
  }
  trainer.finish_step();
  EXPECT_EQ(trainer.take_finished()->progress.iteration, 4);
}

TEST_F(CudaTrainerTest, FollowsTheCpu) {
  TinyTraining on_gpu(stream());
  TinyTraining on_cpu(Stream{});
  on_gpu.build();
  on_cpu.build();
  const auto got = on_gpu.results(6);
  const auto want = on_cpu.results(6);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i].losses[0].second, want[i].losses[0].second, 1e-4) << i;
    EXPECT_NEAR(*got[i].grad_norm, *want[i].grad_norm, 1e-3 * *want[i].grad_norm) << i;
    EXPECT_EQ(got[i].learning_rate, want[i].learning_rate) << i;
  }
}

// What is read late is what would have been read at once: overflows, scale, schedule, weights.
TEST_F(CudaTrainerTest, RunningAheadChangesNothing) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    constexpr int64_t kIterations = 30;
    const auto configure = [](TinyTraining& training) {
      training.config.train_iters = kIterations;
      training.optimizer_config.loss_scale_window = 3;
      training.optimizer_config.hysteresis = 1;
      training.build();
    };
    TinyTraining ahead(stream(), dtype);
    TinyTraining waiting(stream(), dtype);
    configure(ahead);
    configure(waiting);
    const auto got = ahead.results(kIterations);
    std::vector<IterationResult> want;
    int64_t num_skipped = 0;
    for (int64_t i = 0; i < kIterations; ++i) {
      waiting.trainer->train_step();
      waiting.trainer->finish_step();
      want.push_back(waiting.trainer->take_finished()->result);
      if (want.back().is_skipped) ++num_skipped;
    }
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].is_skipped, want[i].is_skipped) << i;
      EXPECT_EQ(got[i].losses, want[i].losses) << i;
      EXPECT_EQ(got[i].grad_norm, want[i].grad_norm) << i;
      EXPECT_EQ(got[i].loss_scale, want[i].loss_scale) << i;
      EXPECT_EQ(got[i].learning_rate, want[i].learning_rate) << i;
    }
    expect_identical(ahead.weights(), waiting.weights());
    if (dtype == DType::kFloat16) {
      EXPECT_GT(num_skipped, 3) << "the test is about overflows";
      EXPECT_LT(num_skipped, kIterations - 3);
    } else {
      EXPECT_EQ(num_skipped, 0);
    }
  }
}

TEST_F(CudaTrainerTest, AGradientThatIsNotFiniteChangesNothing) {
  TinyTraining training(stream());
  training.task.poisoned_gradient = 3;  // iterations have two microbatches
  Trainer& trainer = training.build();
  trainer.train_step();
  trainer.finish_step();
  const Tensor before = copied(training.weights());
  trainer.train_step();
  EXPECT_THAT(message_of<NotFiniteError>([&] { trainer.train_step(); }),
              testing::AllOf(HasSubstr("iteration 2: gradients have infinite"),
                             HasSubstr("first in table.weight")));
  expect_identical(training.weights(), before);
}

TEST_F(CudaTrainerTest, ALossThatIsNotANumberChangesNothing) {
  TinyTraining training(stream());
  training.task.poisoned_loss = 3;
  Trainer& trainer = training.build();
  trainer.train_step();
  trainer.finish_step();
  const Tensor before = copied(training.weights());
  trainer.train_step();
  EXPECT_THAT(message_of<Error>([&] { trainer.finish_step(); }),
              HasSubstr("iteration 2: lm loss is not a number"));
  expect_identical(training.weights(), before);
}

TEST_F(CudaTrainerTest, AMicrobatchThatCannotBeRecordedIsRunAsBefore) {
  TinyTraining training(stream());
  training.records_microbatches = true;
  training.task.waits_for_device = true;
  training.build();
  TinyTraining without(stream());
  without.build();
  CapturedStderr captured_err;
  const auto got = training.results(5);
  const std::string said = captured_err.text();
  EXPECT_THAT(said, HasSubstr("warning: --cuda-graph: cannot record a microbatch, training "
                              "continues without: cudaStreamSynchronize"));
  EXPECT_EQ(said.find("warning"), said.rfind("warning"));
  EXPECT_FALSE(training.trainer->has_recorded_microbatch());
  const auto want = without.results(5);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].losses, want[i].losses) << i;
  expect_identical(training.weights(), without.weights());
}

TEST_F(CudaTrainerTest, ReplayedMicrobatchesGiveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    TinyTraining training(stream(), dtype);
    training.records_microbatches = true;
    training.build();
    TinyTraining without(stream(), dtype);
    without.build();
    const auto got = training.results(6);
    const auto want = without.results(6);
    EXPECT_TRUE(training.trainer->has_recorded_microbatch());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].losses, want[i].losses) << i;
      EXPECT_EQ(got[i].grad_norm, want[i].grad_norm) << i;
    }
    expect_identical(training.weights(), without.weights());
  }
}

// The first words of the lines of a run, in order.
std::vector<std::string> lines_of_run(Stream stream) {
  TinyTraining training(stream);
  training.config.eval_iters = 1;
  training.config.eval_interval = 2;
  training.config.train_iters = 5;
  Trainer& trainer = training.build();
  CapturedStdout captured_out;
  trainer.run();
  std::istringstream text(captured_out.text());
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (line.find("datetime") != std::string::npos) line = "datetime";
    if (line.find("evaluate ..") != std::string::npos) line = "evaluate";
    if (line.find("memory (MB)") != std::string::npos) line = "memory";
    if (line.starts_with("---")) line = "---";
    const size_t at = line.find("iteration");
    lines.push_back(at == std::string::npos ? line : line.substr(at, 24));
  }
  return lines;
}

TEST_F(CudaTrainerTest, LinesComeInTheOrderOfTheCpu) {
  const auto lines = lines_of_run(stream());
  EXPECT_EQ(lines, lines_of_run(Stream{}));
  EXPECT_GT(lines.size(), 10u);
}

}  // namespace
}  // namespace megatron
