#include "megatron/report/event_file.h"

#include <gmock/gmock.h>

#include <cmath>

#include "megatron/core/file.h"
#include "megatron/training/tensorboard.h"
#include "tests/support/temporary_directory.h"

namespace megatron::report {
namespace {

// The event file of a run of two logged iterations.
std::string written_events() {
  const TemporaryDirectory directory;
  TensorBoardWriter writer(directory.path());
  writer.add_text("seq_length", "64", 0);
  for (const int64_t step : {10, 20}) {
    writer.add_scalar("learning-rate", 0.5, step);
    writer.add_scalar("learning-rate vs samples", 0.5, 8 * step);
    writer.add_scalar("lm loss", step == 20 ? std::nan("") : 2.5, step);
    writer.add_scalar("lm loss vs samples", 2.5, 8 * step);
    writer.add_scalar("iteration-time", 0.25, step);
  }
  return read_text(writer.path());
}

TEST(EventFileTest, ReadsScalarsAndSettings) {
  const std::string bytes = written_events();
  ASSERT_TRUE(is_event_file(bytes));
  RunHistory history;
  read_events(history, bytes);
  EXPECT_EQ(history.settings.at("seq_length"), "64");
  ASSERT_EQ(history.find("lm loss")->points.size(), 2u);
  EXPECT_EQ(history.find("lm loss")->points[0].value, 2.5);
  EXPECT_TRUE(std::isnan(history.find("lm loss")->points[1].value));
  EXPECT_EQ(history.find("learning_rate")->points[1].iteration, 20);
  EXPECT_EQ(history.find("consumed_train_samples")->points[1].value, 160);
  EXPECT_EQ(history.find("elapsed_ms_per_iteration")->points[0].value, 250);
  EXPECT_EQ(history.find("lm loss vs samples"), nullptr);
  EXPECT_EQ(history.progress().back().seconds, 5);
}

TEST(EventFileTest, ReadsUpToACutOrDamagedRecord) {
  const std::string bytes = written_events();
  for (size_t size = 0; size < bytes.size(); ++size) {
    RunHistory history;
    read_events(history, std::string_view(bytes).substr(0, size));
    const Series* const loss = history.find("lm loss");
    EXPECT_LE(loss == nullptr ? 0 : loss->points.size(), 2u);
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    RunHistory history;
    read_events(history, damaged);
    EXPECT_EQ(history.find("iteration-time"), nullptr);
    const Series* const time = history.find("elapsed_ms_per_iteration");
    EXPECT_LE(time == nullptr ? 0 : time->points.size(), 1u) << "a damaged byte at " << at;
  }
  EXPECT_FALSE(is_event_file("{\"iteration\": 1}\n"));
  EXPECT_FALSE(is_event_file(""));
}

}  // namespace
}  // namespace megatron::report
