#include "megatron/report/read_run.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "megatron/core/error.h"
#include "tests/report/run_files.h"
#include "tests/support/message_of.h"

namespace megatron::report {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ReadRunTest : public testing::Test, protected RunFiles {
 protected:
  const std::string metrics_ = "{\"iteration\": 10, \"lm loss\": 2.5}\n";
  const std::string console_ =
      "---- arguments ----\n  lr ....... 0.001\n---- end of arguments ----\n"
      " iteration 10/ 20 | lm loss: 2.0E+00 | grad norm: 1.5 |\n";
  const std::string trace_ =
      "[{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"tid\":0,\"args\":{\"name\":\"rank "
      "0\"}},\n"
      "{\"name\":\"iteration\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":100,\"dur\":50},\n"
      "{\"name\":\"forward_step\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":110,\"dur\":10,"
      "\"args\":{\"microbatch\":0,\"chunk\":0}},\n"
      "{\"name\":\"iteration\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":200,\"dur\":50},\n"
      "{\"name\":\"forward_step\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":205,\"dur\":10,"
      "\"args\":{\"microbatch\":0,\"chunk\":1}},\n"
      "{\"name\":\"backward_step\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":215,\"dur\":20,"
      "\"args\":{\"microbatch\":0,\"chunk\":1}},\n"
      "{\"cat\":\"a_step\",\"ph\":\"X\",\"pid\":1e300,\"tid\":0,\"ts\":1,\"dur\":1,\"args\":{}},\n"
      "{\"name\":\"forward_st";
};

TEST_F(ReadRunTest, AFolderIsOneRun) {
  write("run/metrics.jsonl", metrics_);
  write("run/logs/console.log", console_);
  write("run/tb/profile.json", trace_);
  write("run/data.jsonl", "{\"text\": \"iteration\"}\n{\"iteration\": 1, \"lm loss\": 9}\n");
  write("run/notes.txt", "none\n");
  write("run/model.safetensors", metrics_);
  const RunHistory history = read_run(path("run"));
  EXPECT_EQ(history.find("lm loss")->points[0].value, 2.5) << "from the metrics";
  EXPECT_EQ(history.find("grad_norm")->points[0].value, 1.5) << "from the console";
  EXPECT_EQ(history.settings.at("lr"), "0.001");
  ASSERT_EQ(history.pipeline.at(0).size(), 2u) << "of the last iteration";
  EXPECT_EQ(history.pipeline.at(0)[1].name, "backward_step");
  EXPECT_EQ(history.pipeline.at(0)[1].chunk, 1);
  EXPECT_EQ(history.pipeline.at(0)[1].begin, 15);
  EXPECT_EQ(history.pipeline.at(0)[1].end, 35);
}

TEST_F(ReadRunTest, FilesWithCommasAreOneRun) {
  const std::string first = write("a.jsonl", metrics_);
  const std::string second = write("b.jsonl", "{\"iteration\": 20, \"lm loss\": 1.5}\n");
  const std::string log = write("log", console_);
  const RunHistory history = read_run(log + "," + first + "," + second);
  ASSERT_EQ(history.find("lm loss")->points.size(), 2u);
  EXPECT_EQ(history.find("lm loss")->points[1].value, 1.5);
  EXPECT_EQ(history.settings.at("lr"), "0.001");
}

TEST_F(ReadRunTest, RefusesWhatIsNoRun) {
  EXPECT_THAT(message_of<FormatError>([&] { read_run(write("a.txt", "hello\n")); }),
              AllOf(HasSubstr("a.txt: holds no run; expected JSON lines of --metrics-jsonl"),
                    HasSubstr("\"iteration 10/ 100 | lm loss: ... |\"")));
  EXPECT_THAT(message_of<FormatError>([&] { read_run(write("t.json", trace_)); }),
              HasSubstr("t.json: holds no run"));
  write("empty/notes.txt", "hello\n");
  EXPECT_THAT(message_of<FormatError>([&] { read_run(path("empty")); }),
              HasSubstr("empty: holds no run; expected"));
  EXPECT_THAT(message_of<IoError>([&] { read_run(path("none")); }), HasSubstr("none"));
}

TEST_F(ReadRunTest, RefusesAFolderOfSeveralRuns) {
  write("runs/a.jsonl", metrics_);
  write("runs/b.jsonl", metrics_);
  EXPECT_THAT(message_of<ConfigError>([&] { read_run(path("runs")); }),
              HasSubstr("runs: holds the logs of several runs (a.jsonl, b.jsonl), but a folder is "
                        "one run; name the files"));
}

}  // namespace
}  // namespace megatron::report
