#include "megatron/core/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

#include "megatron/core/error.h"
#include "megatron/core/file.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    directory_ = fs::path(testing::TempDir()) / (std::string("folder_") + info->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path place() const { return directory_ / "model"; }
  void make(const std::string& name, const std::string& text) const {
    fs::create_directories(directory_ / name);
    write_text_atomically(directory_ / name / "a", text);
  }
  std::set<std::string> names() const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      found.insert(entry.path().filename().string());
    }
    return found;
  }

  fs::path directory_;
};

TEST_F(FolderTest, AppearsOnlyOnCommit) {
  {
    UnfinishedFolder unfinished(place());
    fs::create_directories(unfinished.path() / "inner");
    write_text_atomically(unfinished.path() / "inner/a", "new");
    EXPECT_FALSE(fs::exists(place()));
    unfinished.commit();
    EXPECT_EQ(read_text(place() / "inner/a"), "new");
  }
  EXPECT_THAT(names(), ElementsAre("model"));
}

TEST_F(FolderTest, AnAbandonedOneLeavesTheOldOne) {
  make("model", "old");
  {
    UnfinishedFolder unfinished(place());
    write_text_atomically(unfinished.path() / "a", "new");
  }
  EXPECT_EQ(read_text(place() / "a"), "old");
  EXPECT_THAT(names(), ElementsAre("model"));
}

TEST_F(FolderTest, ReplacesTheWholeFolder) {
  make("model", "old");
  write_text_atomically(place() / "b", "of the old one alone");
  {
    UnfinishedFolder unfinished(place());
    write_text_atomically(unfinished.path() / "a", "new");
    unfinished.commit();
  }
  EXPECT_EQ(read_text(place() / "a"), "new");
  EXPECT_FALSE(fs::exists(place() / "b"));
  EXPECT_THAT(names(), ElementsAre("model"));
}

// Also the names that a program of one process id would choose again.
TEST_F(FolderTest, TheNextOneRemovesWhatKilledOnesLeft) {
  make("model", "old");
  for (const char* name : {"model.tmp-1", "model.tmp-1-old", "model.tmp-0123456789abcdef",
                           "model.tmp-0123456789abcdef-replaced", "models.tmp-1"}) {
    make(name, "left");
  }
  {
    UnfinishedFolder unfinished(place());
    write_text_atomically(unfinished.path() / "a", "new");
    unfinished.commit();
  }
  EXPECT_EQ(read_text(place() / "a"), "new");
  EXPECT_THAT(names(), ElementsAre("model", "models.tmp-1"));
}

// A program was stopped between the two renames of a file system that cannot exchange names.
TEST_F(FolderTest, ANameWithoutAFolderGetsTheOldOneBack) {
  make("model.tmp-77-replaced", "old");
  make("model.tmp-77", "new");
  EXPECT_EQ(restored_folder(place()), place());
  EXPECT_EQ(read_text(place() / "a"), "old");
  EXPECT_EQ(restored_folder(directory_ / "none"), directory_ / "none");
  fs::rename(place(), directory_ / "model.tmp-77-replaced");
  remove_unfinished_folders(place());
  EXPECT_EQ(read_text(place() / "a"), "old");
  EXPECT_THAT(names(), ElementsAre("model"));
}

TEST_F(FolderTest, AnErrorNamesTheFolder) {
  std::ofstream(directory_ / "file") << "no folder";
  EXPECT_THAT([&] { UnfinishedFolder unfinished(directory_ / "file/model"); },
              testing::ThrowsMessage<IoError>(testing::AllOf(testing::HasSubstr("file/model"),
                                                             testing::HasSubstr("cannot create"))));
}

}  // namespace
}  // namespace megatron
