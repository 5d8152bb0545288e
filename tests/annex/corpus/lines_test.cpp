#include "annex/corpus/lines.h"

#include <gmock/gmock.h>
#include <zlib.h>

#include <numeric>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron::corpus {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::function<LineWork()> without_bad_ones() {
  return [] {
    return [](const Line& line) {
      if (line.text == "drop") return NewLine::drop();
      if (line.text == "bad") return NewLine::bad("it says so");
      return NewLine::write(std::string(line.text) + "!");
    };
  };
}

TEST(RewriteLines, CountsNamesAndKeepsTheOrder) {
  const TemporaryDirectory folder;
  const std::vector<std::filesystem::path> inputs = {folder.write("a", "x\nbad\ndrop\ny"),
                                                     folder.write("b", "bad\nz\n")};
  std::vector<std::string> bad;
  RunOptions options{.threads = 3};
  options.on_bad_line = [&](const std::string& line) { bad.push_back(line); };
  const LineCounts counts =
      rewrite_lines(inputs, folder.path() / "out", options, without_bad_ones());
  EXPECT_EQ(read_text(folder.path() / "out"), "x!\ny!\nz!\n");
  EXPECT_EQ(counts.lines, 6);
  EXPECT_EQ(counts.written, 3);
  EXPECT_EQ(counts.bad, 2);
  EXPECT_THAT(bad, ElementsAre(inputs[0].string() + ":2: it says so",
                               inputs[1].string() + ":1: it says so"));
}

TEST(RewriteLines, ManyThreadsKeepTheOrderOfLongFiles) {
  const TemporaryDirectory folder;
  std::string lines;
  for (int i = 0; i < 200000; ++i) lines += std::to_string(i) + "\n";
  const std::filesystem::path input = folder.write("in", lines);
  std::vector<int64_t> reports;
  RunOptions options{.threads = 7, .log_interval = 60000};
  options.on_progress = [&](int64_t count) { reports.push_back(count); };
  const auto copy = [] {
    return [](const Line& line) { return NewLine::write(std::string(line.text)); };
  };
  EXPECT_EQ(rewrite_lines({&input, 1}, folder.path() / "out", options, copy).written, 200000);
  EXPECT_EQ(read_text(folder.path() / "out"), lines);
  EXPECT_THAT(reports, ElementsAre(60000, 120000, 180000));
}

TEST(RewriteLines, ReadsPackedFiles) {
  const TemporaryDirectory folder;
  const std::filesystem::path input = folder.path() / "in.gz";
  const gzFile file = gzopen(input.c_str(), "wb");
  gzputs(file, "x\ny\n");
  gzclose(file);
  rewrite_lines({&input, 1}, folder.path() / "out", {}, without_bad_ones());
  EXPECT_EQ(read_text(folder.path() / "out"), "x!\ny!\n");
}

TEST(RewriteLines, AFailureLeavesNoFile) {
  const TemporaryDirectory folder;
  const std::filesystem::path input = folder.write("in", "x\ny\n");
  const auto fails = [] {
    return [](const Line& line) -> NewLine {
      if (line.number == 2) throw FormatError("it broke");
      return NewLine::write("");
    };
  };
  for (const int64_t threads : {1, 4}) {
    const RunOptions options{.threads = threads};
    EXPECT_EQ(message_of<FormatError>([&] {
                rewrite_lines({&input, 1}, folder.path() / "out", options, fails);
              }),
              "it broke");
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(RewriteLines, RefusesToWriteOverItsInput) {
  const TemporaryDirectory folder;
  const std::filesystem::path input = folder.write("in", "x\n");
  const auto write_to = [&](const std::filesystem::path& output) {
    return message_of<ConfigError>([&] {
      rewrite_lines({&input, 1}, output, {}, without_bad_ones());
    });
  };
  EXPECT_THAT(write_to(folder.path() / "." / "in"),
              AllOf(HasSubstr("the output is also an input"), HasSubstr("give another path")));
  EXPECT_THAT(write_to(""), HasSubstr("the output file has no name"));
  EXPECT_EQ(read_text(input), "x\n");
}

}  // namespace
}  // namespace megatron::corpus
