#include "megatron/report/run_history.h"

#include <gmock/gmock.h>

#include <cmath>

namespace megatron::report {
namespace {

std::vector<double> values_of(const RunHistory& history, std::string_view name) {
  std::vector<double> values;
  const Series* const series = history.find(name);
  if (series == nullptr) return values;
  values.reserve(series->points.size());
  for (const Point& point : series->points) values.push_back(point.value);
  return values;
}

TEST(RunHistoryTest, ARestartReplacesWhatItRepeats) {
  RunHistory history;
  for (const int64_t iteration : {10, 20, 30, 20, 30, 40}) {
    history.begin_record(iteration);
    const auto value = static_cast<double>(iteration);
    history.add("lm loss", history.restarts() == 0 ? value : value + 0.5);
  }
  EXPECT_EQ(history.restarts(), 1);
  EXPECT_EQ(values_of(history, "lm loss"), (std::vector<double>{10, 20.5, 30.5, 40.5}));
}

TEST(RunHistoryTest, OfSeveralValuesAtAnIterationTheFirstCounts) {
  RunHistory history;
  history.begin_record(10);
  history.add("lm loss validation", 2);
  history.begin_record(10);  // the evaluation of the test set
  history.add("lm loss validation", 3);
  EXPECT_EQ(values_of(history, "lm loss validation"), std::vector<double>{2});
  EXPECT_EQ(history.restarts(), 0);
}

TEST(RunHistoryTest, SumsTheTimeAndTheTokens) {
  RunHistory history;
  for (const int64_t iteration : {10, 20, 40}) {
    history.begin_record(iteration);
    history.add("consumed_train_samples", 8 * static_cast<double>(iteration));
    history.add("elapsed_ms_per_iteration", iteration == 40 ? 250 : 500);
    history.add("tokens_per_second", iteration == 40 ? 64 : 32);  // 16 an iteration
  }
  const std::vector<Progress> progress = history.progress();
  ASSERT_EQ(progress.size(), 3u);
  EXPECT_EQ(progress[0].seconds, 5);
  EXPECT_EQ(progress[1].seconds, 10);
  EXPECT_EQ(progress[2].seconds, 15);
  EXPECT_EQ(progress[2].samples, 320);
  EXPECT_EQ(progress[2].tokens, 640);
}

TEST(RunHistoryTest, AContinuedRunHasTheTokensBeforeItsFirstRecord) {
  RunHistory history;
  for (const int64_t iteration : {110, 120}) {
    history.begin_record(iteration);
    history.add("consumed_train_samples", 8 * static_cast<double>(iteration));
    history.add("elapsed_ms_per_iteration", 500);
    history.add("tokens_per_second", 32);
  }
  const std::vector<Progress> progress = history.progress();
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[0].seconds, 5);
  EXPECT_DOUBLE_EQ(progress[0].tokens, 16 * 110);
  EXPECT_DOUBLE_EQ(progress[1].tokens, 16 * 120);
}

TEST(RunHistoryTest, AnotherLogAddsWhatIsMissing) {
  RunHistory metrics;
  for (const int64_t iteration : {10, 20}) {
    metrics.begin_record(iteration);
    metrics.add("lm loss", 2);
    metrics.add("elapsed_ms_per_iteration", 500);
    metrics.add("tokens_per_second", 32);
  }
  RunHistory events;
  for (const int64_t iteration : {5, 10, 15, 20}) {
    events.begin_record(iteration);
    events.add("lm loss", 3);
    events.add("wall_time", 1000 + static_cast<double>(iteration));
    events.add("mem-allocated-bytes", 4);
  }
  events.settings["seed"] = "1";
  EXPECT_EQ(events.progress().back().seconds, 15);
  metrics.add_missing(events);
  EXPECT_EQ(values_of(metrics, "lm loss"), (std::vector<double>{2, 2}));
  EXPECT_EQ(values_of(metrics, "mem-allocated-bytes").size(), 4u);
  EXPECT_EQ(metrics.settings.at("seed"), "1");
  ASSERT_EQ(metrics.progress().size(), 2u);
  EXPECT_EQ(metrics.progress()[1].seconds, 10);
  EXPECT_EQ(metrics.progress()[1].tokens, 320);
}

TEST(RunHistoryTest, LeavesUnknownProgressOut) {
  RunHistory history;
  history.begin_record(1);
  history.add("lm loss", 2);
  EXPECT_TRUE(history.progress().empty());
  history.begin_record(2);
  history.add("consumed_train_samples", 8);
  ASSERT_EQ(history.progress().size(), 1u);
  EXPECT_TRUE(std::isnan(history.progress()[0].seconds));
  EXPECT_TRUE(std::isnan(history.progress()[0].tokens));
}

}  // namespace
}  // namespace megatron::report
