#include "megatron/core/append_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/support/captured_output.h"

namespace megatron {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class AppendFileTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    directory_ =
        std::filesystem::path(testing::TempDir()) / (std::string("append_") + info->name());
    std::filesystem::remove_all(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path directory_;
};

// No file of this process may grow beyond `bytes` while it lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST_F(AppendFileTest, AddsToWhatIsThere) {
  const auto path = directory_ / "new" / "log";
  AppendFile(path, "--log").append("one\n");
  AppendFile file(path, "--log");
  file.append("two\n");
  EXPECT_EQ(read_text(path), "one\ntwo\n") << "readers see a record at once";
}

TEST_F(AppendFileTest, ALostRecordIsOneWarningAndLaterOnesAreTried) {
  const auto path = directory_ / "log";
  AppendFile file(path, "--log");
  // Longer than what is said meanwhile, which goes to a file, too.
  const std::string first(10000, '-');
  file.append(first + "\n");
  CapturedStderr captured_err;
  {
    const FileSizeLimit limit(first.size() + 5);
    file.append("a record that fits in part\n");
    file.append("and another one\n");
  }
  file.append("last\n");
  const std::string said = captured_err.text();
  EXPECT_EQ(read_text(path), first + "\nlast\n") << "whole records only";
  EXPECT_THAT(said, HasSubstr("--log " + path.string() + ": cannot write: File too large"));
  EXPECT_THAT(said, HasSubstr("writing works again; 2 records are missing"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 2) << said;
}

TEST_F(AppendFileTest, NamesWhatCannotBeOpened) {
  EXPECT_THAT([] { AppendFile("/dev/null/log", "--log"); },
              ThrowsMessage<IoError>(HasSubstr(
                  "--log /dev/null/log: cannot create the directory: Not a directory; ")));
}

}  // namespace
}  // namespace megatron
