#include "megatron/run/training_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "megatron/checkpoint/directory_lock.h"
#include "megatron/comm/threads.h"
#include "megatron/core/error.h"
#include "megatron/models/gpt/gpt_task.h"
#include "megatron/run/collectively.h"
#include "megatron/run/prepared_run.h"
#include "megatron/run/start.h"
#include "megatron/settings/training_args.h"
#include "tests/run/mock_gpt.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"
#include "tests/training/tiny_training.h"

namespace megatron {
namespace {

using testing::AllOf;
using testing::HasSubstr;

RunConfig tiny_gpt() {
  RunConfig config = MockGpt{}.config();
  config.training.micro_batch_size = 2;
  config.training.num_threads = 1;
  config.training.device = DeviceChoice::kCpu;  // the tests look at its memory
  return config;
}

Tensor trained_weights(RunConfig config, bool loads = false) {
  config = resolved(config);
  const CapturedStdout captured_out;
  const auto tokenizer = open_tokenizer(config);
  GptTask task(config, tokenizer);
  TrainingRun run(config, task);
  if (loads) run.load();
  run.train();
  return copied(run.state().parameters.buffers().front().params);
}

TEST(TrainingRunTest, APreparedRunTrainsToTheSameBits) {
  const Tensor want = trained_weights(tiny_gpt());
  const CapturedStdout captured_out;
  const PreparedRun prepared = prepare_run(tiny_gpt());
  GptTask task(prepared.args, prepared.tokenizer);
  TrainingRun run(prepared, task);
  run.load(prepared.source);
  run.train();
  expect_identical(copied(run.state().parameters.buffers().front().params), want);
}

TEST(TrainingRunTest, PreparingReportsAllProblemsOfAConfig) {
  RunConfig config = tiny_gpt();
  config.transformer.num_attention_heads = 5;
  config.optimizer.lr = -1;
  const CapturedStdout captured_out;
  EXPECT_THAT(message_of<ConfigError>([&] { prepare_run(config); }),
              AllOf(HasSubstr("--num-attention-heads"), HasSubstr("--lr")));
}

TEST(TrainingRunTest, ResumesFromItsOwnCheckpointToTheSameBits) {
  const TemporaryDirectory directory;
  const Tensor want = trained_weights(tiny_gpt());

  RunConfig first = tiny_gpt();
  first.checkpoint.save = directory.path().string();
  first.checkpoint.save_interval = 2;
  first.training.exit_interval = 2;
  trained_weights(first);
  RunConfig second = tiny_gpt();
  second.checkpoint.load = directory.path().string();
  expect_identical(trained_weights(second, true), want);
}

// A program without a command line does not replace the checkpoints of another run either.
TEST(TrainingRunTest, OwnsTheDirectoryItSavesTo) {
  const TemporaryDirectory directory;
  RunConfig config = tiny_gpt();
  config.checkpoint.save = directory.path().string();
  config.checkpoint.save_interval = 2;
  config = resolved(config);
  const CapturedStdout captured_out;
  const auto tokenizer = open_tokenizer(config);
  {
    GptTask task(config, tokenizer);
    TrainingRun run(config, task);
    run.train();
    GptTask second(config, tokenizer);
    EXPECT_THAT(message_of<ConfigError>([&] { TrainingRun(config, second); }),
                HasSubstr("another run saves there"));
  }
  GptTask task(config, tokenizer);
  EXPECT_THAT(message_of<ConfigError>([&] { TrainingRun(config, task); }),
              AllOf(HasSubstr("--overwrite-checkpoints"), HasSubstr("up to iteration 4")));
  config.checkpoint.load = config.checkpoint.save;
  GptTask continuing(config, tokenizer);
  TrainingRun run(config, continuing);
  run.load();
  EXPECT_EQ(run.state().progress.iteration, 4);
}

// Only a run without the check for NaN gets there.
TEST(TrainingRunTest, SavingWeightsThatAreNotNumbersGivesAWarning) {
  const TemporaryDirectory directory;
  RunConfig config = tiny_gpt();
  config.training.check_for_nan_in_loss_and_grad = false;
  config.optimizer.check_for_nan_in_loss_and_grad = false;
  config.checkpoint.save = directory.path().string();
  config.checkpoint.save_interval = 2;
  config = resolved(config);
  const CapturedStdout captured_out;
  const auto tokenizer = open_tokenizer(config);
  GptTask task(config, tokenizer);
  TrainingRun run(config, task);
  CapturedStderr without;
  run.save();
  EXPECT_THAT(without.text(), testing::Not(HasSubstr("NaN")));
  Tensor weights = run.state().parameters.parameters().back().variable.data();
  weights.span<float>()[1] = std::numeric_limits<float>::quiet_NaN();
  CapturedStderr with;
  run.save();
  EXPECT_THAT(with.text(), HasSubstr("iteration 0 is saved with weights that are infinite or NaN"));
}

// Rank 0 looks at the directory; no rank waits for it in vain.
TEST(TrainingRunTest, AllRanksAreToldWhyTheDirectoryIsRefused) {
  const TemporaryDirectory directory;
  const DirectoryLock held(directory.path());
  CheckpointConfig config;
  config.save = directory.path().string();
  comm::run_ranks(3, [&](const comm::Group& world) {
    EXPECT_THAT(message_of<CommonConfigError>([&] { prepare_save_directory(config, {}, world); }),
                HasSubstr("another run saves there"));
  });
}

// The run knows the task's model by its parameters alone.
TEST(TrainingRunTest, SavesAndLoadsAnyModule) {
  const TemporaryDirectory directory;
  TinyTraining tiny{Stream{}};
  tiny.build();
  tiny.run.checkpoint.save = directory.path().string();
  tiny.run.checkpoint.load = directory.path().string();
  tiny.run.training.device = DeviceChoice::kCpu;  // its model is there
  const CapturedStdout captured_out;
  TinyTask task(DType::kFloat32);
  TrainingRun run(tiny.run, task);
  run.train();
  tiny.run.checkpoint.save.clear();  // the directory belongs to the first run
  TinyTask other(DType::kFloat32);
  TrainingRun again(tiny.run, other);
  again.load();
  EXPECT_EQ(again.state().progress.iteration, 6);
  expect_identical(again.state().parameters.buffers().front().params,
                   run.state().parameters.buffers().front().params);
}

// Twice the weights over twice the divisor: the mean of every GPT, with the task's own numbers.
class WeightedTask final : public GptTask {
 public:
  using GptTask::GptTask;

 protected:
  void adjust_batch(GptBatch& batch, Split) const override {
    for (float& weight : batch.loss_mask) {
      weight *= 2;
      batch.loss_divisor += weight;
    }
  }
};

TEST(GptTaskTest, WeightsAndDivisorOfTheLossAreTheTasks) {
  const Tensor want = trained_weights(tiny_gpt());
  RunConfig config = resolved(tiny_gpt());
  const CapturedStdout captured_out;
  const auto tokenizer = open_tokenizer(config);
  WeightedTask task(config, tokenizer);
  TrainingRun run(config, task);
  run.train();
  expect_identical(run.state().parameters.buffers().front().params, want);
}

TEST(GptTaskTest, ADivisorOfTheTaskLeavesNoTokensToWeigh) {
  RunConfig config = tiny_gpt();
  config.training.calculate_per_token_loss = true;
  config = resolved(config);
  const CapturedStdout captured_out;
  const auto tokenizer = open_tokenizer(config);
  WeightedTask task(config, tokenizer);
  TrainingRun run(config, task);
  EXPECT_THAT(message_of<ConfigError>([&] { run.train(); }),
              HasSubstr("--calculate-per-token-loss: this task divides its losses"));
}

TEST(ResolvedRunTest, FillsDefaultsAndRecordsSettings) {
  const RunConfig config = resolved(tiny_gpt());
  EXPECT_EQ(config.transformer.ffn_hidden_size, 64);
  EXPECT_EQ(config.training.global_batch_size, 2);
  EXPECT_EQ(std::get<int64_t>(config.settings.at("hidden_size")), 16);
  EXPECT_EQ(std::get<double>(config.settings.at("lr")), 1e-2);
}

TEST(ResolvedRunTest, ReportsAllProblemsTogether) {
  RunConfig config = tiny_gpt();
  config.transformer.hidden_size = 0;
  config.training.micro_batch_size = 0;
  EXPECT_THAT(message_of<ConfigError>([&] { resolved(config); }),
              AllOf(HasSubstr("--hidden-size"), HasSubstr("--micro-batch-size")));
}

}  // namespace
}  // namespace megatron
