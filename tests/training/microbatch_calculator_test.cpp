#include "megatron/training/microbatch_calculator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/core/error.h"

namespace megatron {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(MicrobatchCalculatorTest, ConstantBatchIsCutIntoMicrobatches) {
  MicrobatchCalculator calculator(BatchSizeSchedule::constant(64), 4, 2);
  EXPECT_EQ(calculator.num_microbatches(), 8);
  EXPECT_EQ(calculator.global_batch_size(), 64);
  calculator.update(1000000, true);
  EXPECT_EQ(calculator.num_microbatches(), 8);
}

TEST(MicrobatchCalculatorTest, RejectsIndivisibleBatches) {
  EXPECT_THAT([] { MicrobatchCalculator(BatchSizeSchedule::constant(10), 4, 1); },
              ThrowsMessage<ConfigError>(HasSubstr("global batch size 10")));
  EXPECT_THAT([] { MicrobatchCalculator(BatchSizeSchedule::constant(0), 4, 1); },
              ThrowsMessage<ConfigError>(HasSubstr("smaller than --micro-batch-size")));
}

TEST(MicrobatchCalculatorTest, DecreasesWhenAllowed) {
  const MicrobatchCalculator calculator(BatchSizeSchedule::constant(10), 4, 1, true);
  EXPECT_EQ(calculator.num_microbatches(), 2);
  EXPECT_EQ(calculator.global_batch_size(), 8);
}

TEST(BatchSizeScheduleTest, SmallRampGrowsAtTheRightSamples) {
  MicrobatchCalculator calculator(BatchSizeSchedule::rampup({4, 4, 1000}, 16), 4, 1);
  const auto batch_at = [&](int64_t consumed) {
    calculator.update(consumed, true);
    return calculator.global_batch_size();
  };
  EXPECT_EQ(batch_at(0), 4);
  EXPECT_EQ(batch_at(333), 4);
  EXPECT_EQ(batch_at(336), 8);
  EXPECT_EQ(batch_at(664), 8);
  EXPECT_EQ(batch_at(672), 12);
  EXPECT_EQ(batch_at(1000), 16);
  EXPECT_EQ(batch_at(1008), 16);

  // The first iterations with 8 and 12 samples begin at 336 and 672; the ramp ends at 1008.
  int64_t consumed = 0;
  int64_t iterations = 0;
  int64_t previous = 4;
  std::vector<int64_t> growth;
  while (consumed <= 1000) {
    const int64_t batch = batch_at(consumed);
    if (batch != previous) growth.push_back(consumed);
    previous = batch;
    consumed += batch;
    ++iterations;
  }
  EXPECT_THAT(growth, testing::ElementsAre(336, 672));
  EXPECT_EQ(iterations, 154);
  EXPECT_EQ(consumed, 1008);
}

TEST(BatchSizeScheduleTest, LargeRampTakesTheKnownIterations) {
  const auto schedule = BatchSizeSchedule::rampup({16, 16, 5859375}, 1536);
  int64_t consumed = 0;
  int64_t iterations = 0;
  while (consumed <= 5859375) {
    consumed += schedule.at(consumed);
    ++iterations;
  }
  EXPECT_EQ(iterations, 19802);
  EXPECT_EQ(consumed, 5859424);
  EXPECT_EQ(schedule.train_iters(146484375), 111354);
}

TEST(BatchSizeScheduleTest, RampWithoutGrowthIsConstant) {
  const auto schedule = BatchSizeSchedule::rampup({16, 4, 1000}, 16);
  EXPECT_TRUE(schedule.is_constant());
  EXPECT_EQ(schedule.at(0), 16);
}

TEST(BatchSizeScheduleTest, RejectsRampsThatMissTheBatchSize) {
  EXPECT_THAT(
      [] {
        BatchSizeSchedule::rampup({16, 16, 100}, 40);
      },
      ThrowsMessage<ConfigError>(HasSubstr("--rampup-batch-size 16 16 100")));
  EXPECT_THROW(BatchSizeSchedule::rampup({64, 16, 100}, 32), ConfigError);
  EXPECT_THROW(BatchSizeSchedule::rampup({16, 0, 100}, 32), ConfigError);
}

TEST(BatchSizeScheduleTest, StepsHoldFromTheirThreshold) {
  const auto schedule = BatchSizeSchedule::steps("0:768 250B:1536, 1T:3072", 4096);
  EXPECT_EQ(schedule.at(0), 768);
  EXPECT_EQ(schedule.at(61035155), 768);  // 250e9 / 4096 = 61035156.25
  EXPECT_EQ(schedule.at(61035156), 1536);
  EXPECT_EQ(schedule.at(244140625), 3072);
  EXPECT_EQ(schedule.final_batch_size(), 3072);
}

TEST(BatchSizeScheduleTest, StepsCountIterationsUntilTheSamplesAreConsumed) {
  const auto schedule = BatchSizeSchedule::steps("0:3 1K:5", 100);  // 5 from sample 10 on
  EXPECT_EQ(schedule.train_iters(10), 4);                           // 3, 6, 9, 12
  EXPECT_EQ(schedule.train_iters(12), 4);
  EXPECT_EQ(schedule.train_iters(13), 5);  // 17
  EXPECT_EQ(schedule.train_iters(18), 6);
  EXPECT_EQ(schedule.train_iters(3), 1);
}

TEST(BatchSizeScheduleTest, RejectsBadSteps) {
  const auto steps = [](const char* entries) { return BatchSizeSchedule::steps(entries, 100); };
  EXPECT_THAT([&] { steps("0:8 x:16"); }, ThrowsMessage<ConfigError>(HasSubstr("\"x:16\"")));
  EXPECT_THAT([&] { steps("1K:8"); }, ThrowsMessage<ConfigError>(HasSubstr("begin with 0")));
  EXPECT_THAT([&] { steps("0:8 1K:16 1K:32"); },
              ThrowsMessage<ConfigError>(HasSubstr("rise strictly")));
  EXPECT_THAT([&] { steps("  "); }, ThrowsMessage<ConfigError>(HasSubstr("is empty")));
  EXPECT_THROW(steps("0:0"), ConfigError);
  EXPECT_THROW(steps("0"), ConfigError);
}

TEST(TrainingLengthTest, SamplesBecomeIterationsAndDatasetSizes) {
  TrainingConfig config;
  config.micro_batch_size = 2;
  config.global_batch_size = 8;
  config.train_samples = 163;
  config.eval_interval = 10;
  config.eval_iters = 2;
  EXPECT_EQ(train_iters_of(config), 20);
  const SampleCounts sizes = dataset_sizes_of(config);
  EXPECT_EQ(sizes.train, 163);
  EXPECT_EQ(sizes.valid, 3 * 2 * 8);
  EXPECT_EQ(sizes.test, 2 * 8);
  EXPECT_EQ(consumed_at_iteration(config, 15).train, 0);

  config.train_samples = 0;
  config.train_iters = 20;
  EXPECT_EQ(dataset_sizes_of(config).train, 160);
  EXPECT_EQ(consumed_at_iteration(config, 15).train, 120);
  EXPECT_EQ(consumed_at_iteration(config, 15).valid, 16);
}

TEST(TrainingLengthTest, FlagsBecomeACalculator) {
  TrainingConfig config;
  config.micro_batch_size = 4;
  config.global_batch_size = 16;
  config.train_samples = 2000;
  config.rampup_batch_size = {"4", "4", "1000"};
  const MicrobatchCalculator calculator = make_microbatch_calculator(config, 1);
  EXPECT_EQ(calculator.num_microbatches(), 1);
  EXPECT_EQ(calculator.final_num_microbatches(), 4);
  EXPECT_EQ(train_iters_of(config), 154 + (2000 - 1008) / 16);
}

// A ramp-up that is longer than the training reads more samples than --train-samples counts.
TEST(DatasetSizesTest, ALongRampupIsServed) {
  TrainingConfig config;
  config.micro_batch_size = 1;
  config.global_batch_size = 16;
  config.train_samples = 100;
  config.rampup_batch_size = {"2", "2", "1_000"};
  for (const auto& [as_deepspeed, iterations] : {std::pair{false, 187}, std::pair{true, 129}}) {
    config.deepspeed = as_deepspeed;
    EXPECT_EQ(train_iters_of(config), iterations);
    MicrobatchCalculator calculator = make_microbatch_calculator(config, 1);
    int64_t consumed = 0;
    for (int i = 0; i < iterations; ++i) {
      calculator.update(consumed, true);
      consumed += calculator.global_batch_size();
    }
    EXPECT_EQ(dataset_sizes_of(config).train, consumed);
    if (as_deepspeed) {
      EXPECT_EQ(consumed, 414);
    }
  }
  // A training that outlasts its ramp-up is counted as it was.
  config.train_samples = 146484375;
  config.global_batch_size = 1536;
  config.rampup_batch_size = {"16", "16", "5859375"};
  EXPECT_EQ(dataset_sizes_of(config).train, 146484375);
  EXPECT_EQ(train_iters_of(config), 111354);
}

}  // namespace
}  // namespace megatron
