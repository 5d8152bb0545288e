#include "megatron/core/signal_cleanup.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "megatron/core/error.h"
#include "megatron/core/file.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

class SignalCleanupDeathTest : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = fs::path(testing::TempDir()) / (std::string("signal_") + info->name());
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path directory_;
};

TEST_F(SignalCleanupDeathTest, AnUnfinishedFileGoesWithTheProcess) {
  const auto end_while_writing = [&] {
    clean_up_on_signals();
    FileWriter done(directory_ / "done");
    done.write("whole");
    done.commit();
    FileWriter writer(directory_ / "unfinished");
    writer.write(std::string(3 << 20, 'x'));
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(end_while_writing(), testing::KilledBySignal(SIGTERM), "");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    names.push_back(entry.path().filename().string());
  }
  EXPECT_EQ(names, std::vector<std::string>{"done"});
}

TEST_F(SignalCleanupDeathTest, AFileBeyondTheLimitIsAnErrorWithARemedy) {
  const auto write_too_much = [&] {
    std::signal(SIGXFSZ, SIG_DFL);
    clean_up_on_signals();
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_text_atomically(directory_ / "a", std::string(5000, 'x'));
    } catch (const IoError& error) {
      std::cerr << error.what();
      std::_Exit(2);
    }
  };
  EXPECT_EXIT(write_too_much(), testing::ExitedWithCode(2),
              "a: cannot write: File too large; raise the limit on the size of files .ulimit -f.");
}

TEST_F(SignalCleanupDeathTest, AMappedFileThatShrinksIsNamed) {
  const fs::path path = directory_ / "data.bin";
  const auto read_what_is_gone = [&] {
    clean_up_on_signals();
    write_text_atomically(path, std::string(1 << 16, 'x'));
    const MappedFile file(path);
    fs::resize_file(path, 10);
    const volatile std::byte* bytes = file.bytes().data();
    static_cast<void>(bytes[1 << 15]);
  };
  EXPECT_EXIT(read_what_is_gone(), testing::KilledBySignal(SIGBUS),
              "error: .*data.bin: cannot read: the file became shorter");
}

TEST_F(SignalCleanupDeathTest, AnIgnoredSignalStaysIgnored) {
  const auto hang_up = [] {
    std::signal(SIGHUP, SIG_IGN);
    clean_up_on_signals();
    std::raise(SIGHUP);
    std::_Exit(0);
  };
  EXPECT_EXIT(hang_up(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace megatron
