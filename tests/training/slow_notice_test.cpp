#include "megatron/training/slow_notice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <utility>
#include <vector>

namespace megatron {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

// Waits for the first line that matches `pattern`.
std::string line_with(const std::string& part, const SlowNotice::Options& options,
                      int64_t finished) {
  std::promise<std::string> found;
  bool is_set = false;
  SlowNotice notice(options, [&](const std::string& text) {
    if (is_set || text.find(part) == std::string::npos) return;
    is_set = true;
    found.set_value(text);
  });
  if (finished > 0) notice.finished(finished);
  return found.get_future().get();
}

TEST(SlowNoticeTest, SaysHowFarTheRunIs) {
  const SlowNotice::Options options = {
      .first_iteration = 10, .last_iteration = 50, .log_interval = 100, .patience = 1ms};
  EXPECT_THAT(line_with("10 of", options, 0),
              HasSubstr("still training after 0m00s: 10 of 50 iterations are done; "
                        "--log-interval 100 prints a line every 100 iterations"));
  EXPECT_THAT(line_with("49 of", options, 49),
              HasSubstr("49 of 50 iterations are done, the others take about 0m00s; "));
}

TEST(SlowNoticeTest, SaysHowLongTheFirstIterationTakes) {
  const SlowNotice::Options options = {
      .last_iteration = 50, .log_interval = 1, .least_seconds = 7320, .patience = 20ms};
  EXPECT_EQ(line_with("0 of", options, 0),
            "still training after 0m00s: 0 of 50 iterations are done; by its operations an "
            "iteration takes 2h02m or more");
  std::promise<std::string> found;
  SlowNotice notice({.last_iteration = 50, .least_seconds = 7320, .patience = 20ms},
                    [&, is_set = false](const std::string& text) mutable {
                      if (!std::exchange(is_set, true)) found.set_value(text);
                    });
  notice.advanced(0.00001);
  EXPECT_THAT(found.get_future().get(),
              MatchesRegex("still training after 0m00s: 0 of 50 iterations are done, and 0.0 % of "
                           "the next one; an iteration takes about [0-9]+[hm][0-9]+[ms]"));
}

TEST(SlowNoticeTest, RepeatsAfterTwiceTheSilence) {
  std::vector<SlowNotice::Clock::time_point> times;
  std::promise<void> enough;
  const auto started = SlowNotice::Clock::now();
  {
    SlowNotice notice({.last_iteration = 5, .patience = 2ms}, [&](const std::string& text) {
      EXPECT_THAT(text, Not(HasSubstr("--log-interval")));
      times.push_back(SlowNotice::Clock::now());
      if (times.size() == 4) enough.set_value();
    });
    enough.get_future().wait();
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_GE(times[i] - started, 2ms * (1 << i)) << i;
}

TEST(SlowNoticeTest, EndsWithItsRun) {
  const auto fail = [](const std::string& text) { ADD_FAILURE() << text; };
  SlowNotice notice({.last_iteration = 5, .log_interval = 1, .patience = 1h}, fail);
  for (int64_t i = 1; i <= 5; ++i) notice.finished(i);
}

}  // namespace
}  // namespace megatron
