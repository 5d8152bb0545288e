#include "megatron/cli/report.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/report/run_files.h"
#include "tests/support/captured_output.h"
#include "tests/support/message_of.h"

namespace megatron::cli {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class ReportTest : public testing::Test, protected report::RunFiles {
 protected:
  // Runs the command; returns its output.
  static std::string run(const std::vector<std::string>& words) {
    CapturedStdout captured;
    EXPECT_EQ(report_runs(words), 0);
    return captured.text();
  }
  // The runs of a page.
  json runs_of(const std::string& page) const {
    const std::string text = read_text(path(page));
    const std::string begin = "id=\"data\">";
    const size_t at = text.find(begin) + begin.size();
    return json::parse(text.substr(at, text.find("</script>", at) - at))["runs"];
  }

  const std::string record_ = "{\"iteration\": 1, \"lm loss\": 2.5}\n";
};

TEST_F(ReportTest, WritesAPageOfRunsNamedAfterTheirPaths) {
  const std::string a = write("runs/a/metrics.jsonl", record_);
  const std::string b =
      write("runs/b/metrics.jsonl", "{\"iteration\": 2, \"lm loss\": 1.5}\n{\"it");
  EXPECT_THAT(run({a, b, "--output", path("r.html"), "--title", "T & U"}),
              HasSubstr("r.html: 2 runs, 0.0 MB"));
  EXPECT_THAT(read_text(path("r.html")), HasSubstr("<title>T &amp; U</title>"));
  const json runs = runs_of("r.html");
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0]["name"], "a");
  EXPECT_EQ(runs[1]["name"], "b");
  EXPECT_EQ(runs[1]["series"]["lm loss"]["last"], 1.5);
}

TEST_F(ReportTest, NamesCanBeGiven) {
  const std::string a = write("a.jsonl", record_);
  run({a, a, "--names", "first", "second", "--output", path("r.html")});
  EXPECT_EQ(runs_of("r.html")[1]["name"], "second");
  EXPECT_THAT(message_of<ConfigError>([&] {
                report_runs(std::vector<std::string>{a, a, "--names", "b"});
              }),
              HasSubstr("--names has 1 names for 2 runs; give one for each"));
}

TEST_F(ReportTest, AFileWithoutARunLeavesThePageAsItWas) {
  const std::string a = write("a.jsonl", record_);
  const std::string page = write("r.html", "old");
  for (const std::string content : {"", "hello\n", "{\"loss\": 1}\n"}) {
    const std::string bad = write("bad", content);
    EXPECT_THAT(message_of<FormatError>([&] {
                  report_runs(std::vector<std::string>{a, bad, "--output", page});
                }),
                AllOf(HasSubstr(bad + ": holds no run; expected"), HasSubstr("--metrics-jsonl")));
  }
  EXPECT_EQ(read_text(page), "old");
}

TEST_F(ReportTest, NamesWhatIsMissing) {
  EXPECT_THAT(message_of<ConfigError>([] { report_runs({}); }),
              HasSubstr("no run is given; write megatron report RUN..."));
  EXPECT_THAT(message_of<IoError>([&] { report_runs(std::vector<std::string>{path("none")}); }),
              HasSubstr(path("none")));
}

}  // namespace
}  // namespace megatron::cli
