#include "annex/retro/preprocess/block_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <vector>

#include "megatron/comm/threads.h"
#include "megatron/core/file.h"
#include "tests/support/temporary_directory.h"

namespace megatron::retro {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

// Blocks of 3 of 10 items; the file of a block has its numbers.
class BlockWorkTest : public testing::Test {
 protected:
  // The first items of the blocks that each rank made.
  std::map<int, std::vector<int64_t>> make(int ranks, int64_t columns = 1) {
    std::map<int, std::vector<int64_t>> made;
    std::mutex mutex;
    comm::run_ranks(ranks, [&](const comm::Group& world) {
      make_missing_blocks(
          {.what = "counting",
           .count = 10,
           .block_size = 3,
           .directory = directory_.path() / "blocks",
           .is_valid =
               [&](const Hdf5File& file, const Block& block) {
                 return file.shape("data") == std::vector<int64_t>{block.size(), columns};
               },
           .make =
               [&](const Block& block) {
                 {
                   const std::scoped_lock lock(mutex);
                   made[world.rank()].push_back(block.begin);
                 }
                 Hdf5Writer file(block.path);
                 const std::vector<uint8_t> values(static_cast<size_t>(block.size() * columns));
                 file.add<uint8_t>("data", values, {block.size(), columns});
                 file.commit();
               }},
          world);
      EXPECT_EQ(find_blocks(directory_.path() / "blocks").size(), 4u);  // those of all ranks
    });
    return made;
  }
  std::filesystem::path file(const char* name) const { return directory_.path() / "blocks" / name; }

  TemporaryDirectory directory_;
};

TEST_F(BlockWorkTest, DealsMissingBlocksOverRanks) {
  EXPECT_THAT(make(3), UnorderedElementsAre(Pair(0, ElementsAre(0, 9)), Pair(1, ElementsAre(3)),
                                            Pair(2, ElementsAre(6))));
  EXPECT_THAT(make(3), IsEmpty());
  std::filesystem::remove(file("00-03.hdf5"));
  std::filesystem::remove(file("06-09.hdf5"));
  EXPECT_THAT(make(2), UnorderedElementsAre(Pair(0, ElementsAre(0)), Pair(1, ElementsAre(6))));
}

TEST_F(BlockWorkTest, MakesUnusableBlocksAgain) {
  make(1);
  const std::string text = read_text(file("03-06.hdf5"));
  write_text_atomically(file("03-06.hdf5"), text.substr(0, 100));
  write_text_atomically(file("06-09.hdf5"), "");
  EXPECT_THAT(make(1), ElementsAre(Pair(0, ElementsAre(3, 6))));
  EXPECT_EQ(read_text(file("03-06.hdf5")), text);
  EXPECT_THAT(make(1, /*columns=*/2), ElementsAre(Pair(0, ElementsAre(0, 3, 6, 9))));
}

TEST_F(BlockWorkTest, RemovesOtherFiles) {
  std::filesystem::create_directories(file("").parent_path());
  write_text_atomically(file("00-05.hdf5"), "of another block size");
  write_text_atomically(file("00-03.hdf5.tmp-0123456789abcdef"), "of an interrupted run");
  make(1);
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(file("").parent_path())) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 4);
}

}  // namespace
}  // namespace megatron::retro
