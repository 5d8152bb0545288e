#include "megatron/training/straggler_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "megatron/comm/collectives.h"
#include "megatron/comm/threads.h"
#include "megatron/parallel/config.h"

namespace megatron {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::SizeIs;
using testing::StartsWith;

ParallelContext context_of(const comm::Group& world, int stages) {
  ParallelConfig config;
  config.pipeline_model_parallel_size = stages;
  config.world_size = world.size();
  return make_parallel_context(world, resolved(config));
}

TEST(StragglerLogTest, FindsTheLargestOfAllRanksAndTheHighestOfEqualOnes) {
  comm::run_ranks(5, [](const comm::Group& world) {
    const double rank = world.rank();
    const std::vector<OfRank> largest =
        largest_of_ranks({rank == 2 ? 3.25 : 1.5, -rank - 0.25, 7}, world);
    ASSERT_EQ(largest.size(), 3u);
    EXPECT_EQ(largest[0].value, 3.25);
    EXPECT_EQ(largest[0].rank, 2);
    EXPECT_EQ(largest[1].value, -0.25);
    EXPECT_EQ(largest[1].rank, 0);
    EXPECT_EQ(largest[2].rank, 4);
  });
}

using Work = StragglerLog::Work;

TEST(StragglerLogTest, NamesTheSlowestAndTheFastestRanks) {
  comm::run_ranks(3, [&](const comm::Group& world) {
    const auto rank = static_cast<size_t>(world.rank());
    StragglerLog log(context_of(world, 1), Stream{}, 2);
    for (int i = 0; i < 2; ++i) {
      log.count_iteration(6e9);
      log.add(Work::kRead, std::array{0.5, 0.25, 1.5}[rank] / (i + 1));
      log.add(Work::kCompute, std::array{4.0, 12.5, 1.0}[rank]);
      log.add(Work::kCompute, 1);
    }
    const StragglerLog::Report report = log.report();
    ASSERT_THAT(report.lines, SizeIs(3));
    EXPECT_THAT(report.lines[0],
                MatchesRegex("\\[[-0-9]+ [:0-9]+\\] \\| MnRtt/Rnk: 2.00ms/2 \\| MxRtt/Rnk: "
                             "13.50ms/1 \\| MnDRtt/Rnk: 0.25ms/1 \\| MxDRtt/Rnk: 1.50ms/2 \\| "
                             "MnEtpt/Rnk: 0.15TF/1 \\| MxEtpt/Rnk: 1.00TF/2"));
    EXPECT_EQ(report.lines[1], "^^^^ Bottom 2 Ranks with lowest  Etpt(TF): 0.15/1, 0.40/0,");
    EXPECT_EQ(report.lines[2], "^^^^ Top    2 Ranks with highest Etpt(TF): 0.40/0, 1.00/2,");
    log.count_iteration(6e9);  // the times begin again
    log.add(Work::kCompute, 1.0 + world.rank());
    EXPECT_THAT(log.report().lines[0], HasSubstr("MxRtt/Rnk: 3.00ms/2 | MnDRtt/Rnk: 0.00ms/2"));
  });
}

TEST(StragglerLogTest, ARankDoesNotComputeWhileItWaits) {
  comm::run_ranks(2, [&](const comm::Group& world) {
    StragglerLog log(context_of(world, 1), Stream{}, 1);
    log.count_iteration(1);
    {
      const StragglerLog::Scope computing(&log, Work::kCompute);
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(40);
      while (world.rank() == 1 && std::chrono::steady_clock::now() < end) {
      }
      comm::barrier(world);
    }
    EXPECT_THAT(log.report().lines[0], HasSubstr("ms/0 | MxRtt/Rnk: "));
  });
}

// The second stage computes longer than the first, and rank 0 than its fellow of the first.
TEST(StragglerLogTest, WarnsOnceOfARankThatStaysSlowInItsStage) {
  comm::run_ranks(4, [](const comm::Group& world) {
    const ParallelContext context = context_of(world, 2);
    StragglerLog log(context, Stream{}, 1);
    const auto warning = [&](double of_rank_0) {
      log.count_iteration(1);
      const bool is_second = context.pipeline.rank() == 1;
      log.add(Work::kCompute, is_second ? 9 : world.rank() == 0 ? of_rank_0 : 2);
      return log.report().warning;
    };
    for (int i = 0; i < 4; ++i) EXPECT_EQ(warning(3), "");
    EXPECT_EQ(warning(2.1), "");  // it has recovered
    for (int i = 0; i < 4; ++i) EXPECT_EQ(warning(3), "");
    EXPECT_EQ(warning(3),
              "rank 0 computes 1.50 times as long as the others of its pipeline stage, in 5 log "
              "intervals running; look for other programs, heat or a slow device there");
    for (int i = 0; i < 9; ++i) EXPECT_EQ(warning(3), "");
  });
}

// The ranks of a slow host take turns at being the slowest.
TEST(StragglerLogTest, NamesEveryRankThatStaysSlow) {
  comm::run_ranks(4, [](const comm::Group& world) {
    StragglerLog log(context_of(world, 1), Stream{}, 1);
    std::vector<std::string> warnings;
    for (int i = 0; i < 7; ++i) {
      log.count_iteration(1);
      log.add(Work::kCompute, std::array{1, 1, i % 2 == 0 ? 4 : 5,
                                         i % 2 == 0 ? 5 : 4}[static_cast<size_t>(world.rank())]);
      warnings.push_back(log.report().warning);
    }
    EXPECT_EQ(warnings[3], "");
    EXPECT_THAT(warnings[4], StartsWith("rank 3 computes 2.50 times"));
    EXPECT_THAT(warnings[5], StartsWith("rank 2 computes 2.50 times"));
    EXPECT_EQ(warnings[6], "");
  });
}

}  // namespace
}  // namespace megatron
