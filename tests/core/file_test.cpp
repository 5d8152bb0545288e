#include "megatron/core/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

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

// Files left by a killed program are unlocked.
TEST_F(FileTest, TheNextWriterRemovesWhatAKilledOneLeft) {
  std::ofstream(directory_ / "a.tmp-megatron") << "half of";
  std::ofstream(directory_ / "a.tmp-megatron-2") << "half of another";
  std::ofstream(directory_ / "b.tmp-megatron") << "of another file";
  write_text_atomically(directory_ / "a", "whole");
  EXPECT_EQ(read_text(directory_ / "a"), "whole");
  EXPECT_EQ(files_in_directory(), 2);  // a, and that of b
}

TEST_F(FileTest, WritersOfOnePathDoNotMeet) {
  FileWriter first(directory_ / "a");
  first.write("first");
  first.sync();  // it keeps its temporary file
  {
    FileWriter second(directory_ / "a");
    FileWriter third(directory_ / "a");
    EXPECT_EQ(files_in_directory(), 3);
    second.write("second");
    second.commit();
    EXPECT_EQ(read_text(directory_ / "a"), "second");
  }
  first.commit();
  EXPECT_EQ(read_text(directory_ / "a"), "first");
  EXPECT_EQ(files_in_directory(), 1);
}

// Names that others can guess must not lead a writer to a file of somebody else.
TEST_F(FileTest, ALinkInThePlaceOfItsTemporaryFileIsNotFollowed) {
  write_text_atomically(directory_ / "precious", "precious");
  std::filesystem::create_symlink("precious", directory_ / "a.tmp-megatron");
  write_text_atomically(directory_ / "a", "new");
  EXPECT_EQ(read_text(directory_ / "precious"), "precious");
  EXPECT_EQ(read_text(directory_ / "a"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(directory_ / "a.tmp-megatron"));
}

TEST_F(FileTest, TwoFilesAppearTogether) {
  write_text_atomically(directory_ / "tokens", "old tokens");
  write_text_atomically(directory_ / "index", "old index");
  {
    FileWriter tokens(directory_ / "tokens");
    FileWriter index(directory_ / "index");
    tokens.write("new tokens");
    index.write("new index");
    EXPECT_EQ(read_text(directory_ / "index"), "old index");
    commit_together(tokens, index);
  }
  EXPECT_EQ(read_text(directory_ / "tokens"), "new tokens");
  EXPECT_EQ(read_text(directory_ / "index"), "new index");
  EXPECT_EQ(files_in_directory(), 2);
}

TEST_F(FileTest, CopiesWholeFiles) {
  write_text_atomically(directory_ / "a", "text");
  copy_whole_file(directory_ / "a", directory_ / "b");
  EXPECT_EQ(read_text(directory_ / "b"), "text");
  EXPECT_THAT([&] { copy_whole_file(directory_ / "none", directory_ / "c"); },
              ThrowsMessage<IoError>(HasSubstr("none: cannot open")));
  EXPECT_EQ(files_in_directory(), 2);
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
