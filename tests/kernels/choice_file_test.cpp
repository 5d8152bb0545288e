#include "megatron/kernels/choice_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "megatron/core/file.h"
#include "tests/support/captured_output.h"
#include "tests/support/temporary_directory.h"

namespace megatron::kernels {
namespace {

using testing::HasSubstr;
using testing::Optional;

class ChoiceFileTest : public testing::Test {
 protected:
  std::filesystem::path path() const { return directory_.path() / "deep" / "choices.txt"; }

  TemporaryDirectory directory_;
};

TEST_F(ChoiceFileTest, AnswersOutliveTheObject) {
  EXPECT_EQ(ChoiceFile(path()).find("2x2"), std::nullopt);
  EXPECT_EQ(ChoiceFile(path()).remember("2x2", "7 b"), "7 b");
  EXPECT_EQ(ChoiceFile(path()).remember("3x3", "9"), "9");
  const ChoiceFile again(path());
  EXPECT_THAT(again.find("2x2"), Optional(std::string("7 b")));
  EXPECT_THAT(again.find("3x3"), Optional(std::string("9")));
  EXPECT_EQ(again.find("2x"), std::nullopt);
}

TEST_F(ChoiceFileTest, TheFirstAnswerStands) {
  ChoiceFile mine(path());
  ChoiceFile theirs(path());  // read before mine wrote
  EXPECT_EQ(mine.remember("2x2", "7"), "7");
  EXPECT_EQ(theirs.remember("2x2", "8"), "7");
  EXPECT_EQ(mine.remember("2x2", "9"), "7");
  EXPECT_THAT(theirs.find("2x2"), Optional(std::string("7")));
}

TEST_F(ChoiceFileTest, DamagedLinesAreIgnoredAndLeftOut) {
  ChoiceFile(path()).remember("2x2", "7");
  const std::string good = read_text(path());
  std::string damaged = good;
  damaged[damaged.size() - 2] = '8';  // the answer: its checksum no longer fits
  write_text_atomically(path(), "\nnot ours\n" + good.substr(0, 20) + "\n" + damaged);

  CapturedStderr captured_err;
  ChoiceFile file(path());
  EXPECT_THAT(captured_err.text(), HasSubstr("4 damaged lines are ignored"));
  EXPECT_EQ(file.find("2x2"), std::nullopt);
  const CapturedStderr of_remembering;
  EXPECT_EQ(file.remember("2x2", "7"), "7");
  EXPECT_EQ(read_text(path()), good);
}

// A search of algorithms does not wait for the disk: the file is not written anew for each answer.
TEST_F(ChoiceFileTest, AnAnswerIsALineMore) {
  ChoiceFile file(path());
  file.remember("2x2", "7");
  const std::string first = read_text(path());
  const auto inode = [&] {
    struct stat status {};
    EXPECT_EQ(::stat(path().c_str(), &status), 0);
    return status.st_ino;
  };
  const ino_t before = inode();
  file.remember("1x1", "8");
  EXPECT_EQ(inode(), before);
  EXPECT_EQ(read_text(path()).substr(0, first.size()), first);
  EXPECT_THAT(ChoiceFile(path()).find("1x1"), Optional(std::string("8")));
}

TEST_F(ChoiceFileTest, ALineWithoutItsEndDoesNotSpoilTheNext) {
  ChoiceFile(path()).remember("2x2", "7");
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) - 1);
  ChoiceFile(path()).remember("3x3", "8");
  const ChoiceFile file(path());
  EXPECT_THAT(file.find("2x2"), Optional(std::string("7")));
  EXPECT_THAT(file.find("3x3"), Optional(std::string("8")));
}

// As one that was stopped while it added an answer.
TEST_F(ChoiceFileTest, AProcessThatKeepsTheLockStopsNobody) {
  std::filesystem::create_directories(path().parent_path());
  const std::string lock = path().string() + ".lock";
  const int descriptor = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(::flock(descriptor, LOCK_EX), 0);
  ChoiceFile file(path(), std::chrono::milliseconds(20));
  CapturedStderr captured_err;
  EXPECT_EQ(file.remember("2x2", "7"), "7");
  EXPECT_EQ(file.remember("3x3", "8"), "8");
  EXPECT_THAT(captured_err.text(),
              HasSubstr(".lock: another process has held this lock for 20 ms; this run's "
                        "measurements are not kept"));
  EXPECT_THAT(file.find("2x2"), Optional(std::string("7")));
  ::close(descriptor);
  file.remember("4x4", "9");
  EXPECT_THAT(ChoiceFile(path()).find("4x4"), Optional(std::string("9")));
}

TEST_F(ChoiceFileTest, WithoutAPlaceAnswersLiveAsLongAsTheObject) {
  directory_.write("deep", "a file where a directory is needed");
  ChoiceFile file(path());
  CapturedStderr captured_err;
  EXPECT_EQ(file.remember("2x2", "7"), "7");
  EXPECT_EQ(file.remember("3x3", "8"), "8");
  const std::string said = captured_err.text();
  EXPECT_THAT(said, HasSubstr("deep/choices.txt: cannot create"));
  EXPECT_EQ(said.find("warning"), said.rfind("warning")) << said;  // once
  EXPECT_THAT(file.find("2x2"), Optional(std::string("7")));
}

// Each object reads and writes the file as a process of its own does.
TEST_F(ChoiceFileTest, WritersAtTheSameTimeLoseNothing) {
  constexpr int kWriters = 3;
  constexpr int kAnswers = 3;
  std::vector<std::thread> writers;
  for (int i = 0; i < kWriters; ++i) {
    writers.emplace_back([this, i] {
      ChoiceFile file(path());
      for (int k = 0; k < kAnswers; ++k) {
        file.remember(std::to_string(i) + "/" + std::to_string(k), std::to_string(i * k));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const ChoiceFile file(path());
  for (int i = 0; i < kWriters; ++i) {
    for (int k = 0; k < kAnswers; ++k) {
      EXPECT_THAT(file.find(std::to_string(i) + "/" + std::to_string(k)),
                  Optional(std::to_string(i * k)));
    }
  }
}

TEST(CacheDirectoryTest, FollowsTheEnvironment) {
  const auto with = [](const char* cache, const char* home) {
    cache == nullptr ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", cache, 1);
    home == nullptr ? ::unsetenv("HOME") : ::setenv("HOME", home, 1);
    return cache_directory();
  };
  const char* const home = ::getenv("HOME");
  const std::string kept = home == nullptr ? "" : home;
  EXPECT_EQ(with("/c", "/h"), "/c/megatron");
  EXPECT_EQ(with("c", "/h"), "/h/.cache/megatron");
  EXPECT_EQ(with(nullptr, "/h"), "/h/.cache/megatron");
  EXPECT_EQ(with(nullptr, nullptr), "");
  with(nullptr, kept.empty() ? nullptr : kept.c_str());
}

}  // namespace
}  // namespace megatron::kernels
