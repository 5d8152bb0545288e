#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "megatron/cli/inspect_dataset.h"
#include "megatron/cli/merge_datasets.h"
#include "megatron/core/error.h"
#include "megatron/core/file.h"
#include "tests/data/write_dataset.h"
#include "tests/support/captured_output.h"
#include "tests/support/temporary_directory.h"

namespace megatron::cli {
namespace {

using testing::HasSubstr;
using WordList = std::vector<std::string>;

class DatasetToolsTest : public testing::Test {
 protected:
  DatasetToolsTest() {
    std::filesystem::create_directory(directory_.path() / "in");
    write_counting_dataset(path("in/b"), {2, 3}, 100);
    write_counting_dataset(path("in/a"), {1, 0});
    write_text_atomically(path("in/README"), "passed over");
  }
  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

  // What the command prints, or the message it throws.
  static std::string run(int (*command)(std::span<const std::string>), const WordList& words) {
    CapturedStdout captured_out;
    std::string thrown;
    try {
      EXPECT_EQ(command(words), 0);
    } catch (const Error& error) {
      thrown = error.what();
    }
    return thrown + captured_out.text();
  }

  TemporaryDirectory directory_;
};

TEST_F(DatasetToolsTest, MergesADirectoryByName) {
  const std::string said =
      run(merge_datasets, {"--input", path("in"), "--output-prefix", path("all")});
  EXPECT_THAT(said, HasSubstr("2 datasets, 4 documents, 6 tokens"));
  const IndexedDataset merged(path("all"));
  EXPECT_EQ(merged.sequence(0)[0], 1);
  EXPECT_EQ(merged.sequence(3)[2], 104);
}

TEST_F(DatasetToolsTest, MergesInTheGivenOrder) {
  run(merge_datasets,
      {"--datasets", path("in/b"), path("in/a"), path("in/b"), "--output-prefix", path("all")});
  const IndexedDataset merged(path("all"));
  EXPECT_EQ(merged.num_documents(), 6);
  EXPECT_EQ(merged.sequence(0)[0], 100);
}

TEST_F(DatasetToolsTest, MergeNamesWhatIsWrong) {
  EXPECT_THAT(run(merge_datasets, {}), HasSubstr("either --input DIR or --datasets"));
  EXPECT_THAT(run(merge_datasets, {"--input", path("in")}),
              HasSubstr("--output-prefix is missing"));
  EXPECT_THAT(run(merge_datasets, {"--input", path("none"), "--output-prefix", path("x")}),
              HasSubstr("is not a directory"));
  EXPECT_THAT(run(merge_datasets, {"--input", directory_.path(), "--output-prefix", path("x")}),
              HasSubstr("holds no .bin"));
  EXPECT_THAT(run(merge_datasets, {"--input", path("in"), "--output-prefix", path("no/x")}),
              HasSubstr("directory of the output does not exist"));
  EXPECT_THAT(run(merge_datasets, {"--input", path("in"), "--output-prefix", path("in/a")}),
              HasSubstr("both an input and the output"));
  std::filesystem::remove(path("in/a.bin"));
  EXPECT_THAT(run(merge_datasets, {"--input", path("in"), "--output-prefix", path("x")}),
              HasSubstr("only one of .bin and .idx"));
}

TEST_F(DatasetToolsTest, InspectShowsCountsAndIds) {
  const std::string said = run(inspect_dataset, {"--dataset", path("in/b"), path("in/a"),
                                                 "--documents", "1", "--max-tokens", "2"});
  EXPECT_THAT(said, HasSubstr("element type: int32\ndocuments: 2 (0 empty)\nsequences: 2\n"
                              "tokens: 5\ntokens per sequence: 2 to 3, mean 2.5\n"));
  EXPECT_THAT(said, HasSubstr("document 1\nsequence 1, 3 tokens: 102 103 ...\n"));
  EXPECT_THAT(said, HasSubstr("sequence 1, 0 tokens:\n"));
  EXPECT_THAT(run(inspect_dataset, {}), HasSubstr("the dataset is missing"));
  EXPECT_THAT(run(inspect_dataset, {"--dataset", path("in/a"), "--documents", "2"}),
              HasSubstr("document 2 is outside [0, 2)"));
}

TEST_F(DatasetToolsTest, InspectsThePrefixesBeforeTheFlags) {
  const std::string by_flag = run(inspect_dataset, {"--dataset", path("in/b"), path("in/a")});
  EXPECT_THAT(by_flag, HasSubstr(path("in/a")));
  EXPECT_EQ(run(inspect_dataset, {path("in/b"), path("in/a")}), by_flag);
  EXPECT_THAT(run(inspect_dataset, {path("in/b"), "--documents", "0"}), HasSubstr("document 0"));
  EXPECT_THAT(run(inspect_dataset, {"--documents", "0"}), HasSubstr("the dataset is missing"));
}

}  // namespace
}  // namespace megatron::cli
