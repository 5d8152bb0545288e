#include "annex/retro/data/neighbor_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "annex/retro/data/work_directory.h"
#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class NeighborTableTest : public testing::Test {
 protected:
  // Row k is 10 k, 10 k + 1.
  static void write(const Block& block) {
    std::vector<int64_t> values;
    for (int64_t row = block.begin; row < block.end; ++row) {
      values.insert(values.end(), {10 * row, 10 * row + 1});
    }
    Hdf5Writer writer(block.path);
    writer.add<int64_t>("neighbors", values, {block.size(), 2});
    writer.commit();
  }

  TemporaryDirectory directory_;
  std::vector<Block> blocks_ = blocks_of(11, 4, directory_.path());
};

TEST_F(NeighborTableTest, FilesAreNamedAsMegatronDoes) {
  std::vector<std::string> names;
  for (const Block& block : blocks_) names.push_back(block.path.filename().string());
  EXPECT_THAT(names, ElementsAre("000-004.hdf5", "004-008.hdf5", "008-011.hdf5"));
  EXPECT_EQ(blocks_of(1, 5, "")[0].path, "0-1.hdf5");
  EXPECT_EQ(blocks_of(100, 100, "")[0].path, "000-100.hdf5");
  EXPECT_TRUE(blocks_of(0, 5, "").empty());
}

TEST_F(NeighborTableTest, FindsRowsInBlocks) {
  for (const Block& block : blocks_) write(block);
  directory_.write("notes.txt", "no block");
  const NeighborTable table(directory_.path());
  EXPECT_EQ(table.num_chunks(), 11);
  EXPECT_EQ(table.num_neighbors(), 2);
  for (int64_t chunk = 0; chunk < 11; ++chunk) {
    EXPECT_THAT(table.neighbors_of(chunk), ElementsAre(10 * chunk, 10 * chunk + 1));
  }
  EXPECT_THROW(table.neighbors_of(11), Error);
  EXPECT_THROW(table.neighbors_of(-1), Error);
}

TEST_F(NeighborTableTest, NamesTheDirectoryAndWhatToCompare) {
  const std::filesystem::path absent = directory_.path() / "train_0123";
  EXPECT_THAT(message_of([&] { NeighborTable table(absent); }),
              testing::AllOf(HasSubstr("train_0123: this directory of neighbours is missing"),
                             HasSubstr("--train-samples, --seq-length, --seed")));
  for (const Block& block : blocks_) write(block);
  const NeighborTable table(directory_.path());
  table.expect_chunks(11);
  EXPECT_THAT(message_of([&] { table.expect_chunks(12); }),
              HasSubstr("has the neighbours of 11 chunks, but the samples have 12"));
}

TEST_F(NeighborTableTest, RefusesMissingAndOddBlocks) {
  write(blocks_[0]);
  write(blocks_[2]);
  EXPECT_THAT(message_of([&] { NeighborTable table(directory_.path()); }),
              HasSubstr("the block from 4 on is missing, as the next file is 008-011.hdf5"));
  Hdf5Writer writer(blocks_[1].path);
  writer.add<int64_t>("neighbors", std::vector<int64_t>(12), {4, 3});
  writer.commit();
  EXPECT_THAT(message_of([&] { NeighborTable table(directory_.path()); }),
              HasSubstr("has 4 rows of 3 neighbours, expected 4 of 2"));
}

}  // namespace
}  // namespace megatron
