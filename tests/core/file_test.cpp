#include "megatron/core/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "megatron/core/error.h"

namespace megatron {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::path(testing::TempDir()) / (std::string("file_") + info->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  int64_t files_in_directory() const {
    return std::distance(std::filesystem::directory_iterator(directory_), {});
  }

  std::filesystem::path directory_;
};

TEST_F(FileTest, AppearsOnlyOnCommit) {
  const auto path = directory_ / "a";
  {
    FileWriter writer(path);
    writer.write("hello ");
    writer.write("world");
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_EQ(writer.bytes_written(), 11);
    writer.commit();
  }
  EXPECT_EQ(read_text(path), "hello world");
  EXPECT_EQ(files_in_directory(), 1);
}

TEST_F(FileTest, AbandonedWriterLeavesNothing) {
  {
    FileWriter writer(directory_ / "a");
    writer.write(std::string(3 << 20, 'x'));
  }
  EXPECT_EQ(files_in_directory(), 0);
}

TEST_F(FileTest, WritesLargerThanTheBuffer) {
  const std::string large(5 << 20, 'y');
  FileWriter writer(directory_ / "a");
  writer.write("x");
  writer.write(large);
  writer.write("z");
  writer.commit();
  EXPECT_EQ(read_text(directory_ / "a"), "x" + large + "z");
}

TEST_F(FileTest, ReplacesAtomically) {
  write_text_atomically(directory_ / "a", "old");
  write_text_atomically(directory_ / "a", "new");
  EXPECT_EQ(read_text(directory_ / "a"), "new");
  EXPECT_EQ(files_in_directory(), 1);
}

TEST_F(FileTest, MissingFileNamesPathReasonAndRemedy) {
  EXPECT_THAT([&] { read_text(directory_ / "none"); },
              ThrowsMessage<IoError>(
                  testing::AllOf(HasSubstr("none: cannot open"), HasSubstr("check the path"))));
  EXPECT_THAT([&] { read_text(directory_); }, ThrowsMessage<IoError>(HasSubstr("directory")));
}

TEST_F(FileTest, EmptyFileMapsToNothing) {
  write_text_atomically(directory_ / "a", "");
  EXPECT_TRUE(MappedFile(directory_ / "a").bytes().empty());
}

TEST_F(FileTest, AFileThatMayNotGrowFailsAndLeavesNothing) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THAT([&] { write_text_atomically(directory_ / "a", std::string(5000, 'x')); },
              ThrowsMessage<IoError>(HasSubstr("a: cannot write")));
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(files_in_directory(), 0);
}

}  // namespace
}  // namespace megatron
