#include "megatron/training/timers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron/training/progress_bar.h"

namespace megatron {
namespace {

using testing::MatchesRegex;

TEST(TimersTest, ReportsInMegatronsFormAndResets) {
  Timers timers(0, TimingLogOption::kMinMax);
  { const TimerScope scope(timers, "save-checkpoint", 0); }
  EXPECT_THAT(timers.report({"save-checkpoint"}, 1),
              MatchesRegex("\\(min, max\\) time across ranks \\(ms\\):\n"
                           "    save-checkpoint \\.+: \\([0-9]+\\.[0-9]+, [0-9]+\\.[0-9]+\\)"));
  EXPECT_EQ(timers.report({"save-checkpoint"}, 1), "");
}

TEST(TimersTest, LabelIsFortyEightColumns) {
  Timers timers(0, TimingLogOption::kMax);
  { const TimerScope scope(timers, "evaluate", 0); }
  const std::string report = timers.report({"evaluate"}, 1);
  const std::string line = report.substr(report.find('\n') + 1);
  EXPECT_EQ(line.find(": "), 4u + 48u);
}

TEST(TimersTest, HigherLevelsCostNothing) {
  Timers timers(1, TimingLogOption::kMinMax);
  { const TimerScope scope(timers, "batch-generator", 2); }
  EXPECT_EQ(timers.elapsed("batch-generator"), 0);
}

TEST(ProgressBarTest, FitsTheTerminal) {
  EXPECT_EQ(bar_text(50, 100, 3.25, 1234.4, 75, 80),
            "[###############---------------] 50/100  loss 3.2500  1234 tokens/s  1m15s left");
  EXPECT_LE(bar_text(50, 100, 3.25, 1234.4, 7500, 40).size(), 40u);
  EXPECT_LE(bar_text(0, 0, 0, 0, 0, 10).size(), 10u);
}

TEST(TerminalLineTest, IsErasedBeforeTheNext) {
  std::FILE* const file = std::tmpfile();
  TerminalLine line(file);
  line.draw("one");
  line.draw(std::string(200, 'x'));
  line.clear();
  line.clear();
  std::string written(300, '\0');
  std::rewind(file);
  written.resize(std::fread(written.data(), 1, written.size(), file));
  std::fclose(file);
  const std::string erase = "\r\x1b[K";
  EXPECT_EQ(written, erase + "one" + erase + std::string(79, 'x') + erase);
}

TEST(EvaluationProgressTest, IsALineOnStandardErrorWithoutATerminal) {
  testing::internal::CaptureStderr();
  TerminalLine none(nullptr);
  EvaluationProgress progress(&none, 4, std::chrono::milliseconds(0));
  progress.update(0, "");
  progress.update(1, "lm loss 3.2500");
  progress.update(4, "");
  EvaluationProgress rare(&none, 4);  // ten seconds have not passed
  rare.update(1, "lm loss 3.2500");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "evaluating: 1/4 batches, lm loss 3.2500, 0m00s left\n"
            "evaluating: 4/4 batches, 0m00s left\n");
}

}  // namespace
}  // namespace megatron
