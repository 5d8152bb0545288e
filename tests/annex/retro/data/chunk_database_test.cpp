#include "annex/retro/data/chunk_database.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "megatron/core/error.h"
#include "tests/data/write_dataset.h"
#include "tests/support/message_of.h"
#include "tests/support/source_path.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t kChunkDatabaseEod = 999;

// The database of tests/golden/retro over two datasets.
class ChunkDatabaseTest : public testing::Test {
 protected:
  ChunkDatabaseTest() {
    write_counting_dataset(directory_.path() / "a", {6, 4});    // 1..6, 7..10
    write_counting_dataset(directory_.path() / "b", {3}, 101);  // 101..103
    std::filesystem::create_directories(file_.parent_path());
    std::filesystem::copy_file(source_path("tests/golden/retro/train.hdf5"), file_);
    write_chunk_sources(directory_.path(), {source("a"), source("b")});
  }

  ChunkSource source(const std::string& name) const {
    return {.ratio = 1,
            .prefix = (directory_.path() / name).string(),
            .name = name,
            .blocks = individual_chunks(directory_.path(), name)};
  }
  ChunkDatabase open(int64_t chunk_length) const {
    return {directory_.path(), ChunkPart::kTrain, chunk_length, kChunkDatabaseEod};
  }

  TemporaryDirectory directory_;
  std::filesystem::path file_ = merged_chunks_file(directory_.path(), ChunkPart::kTrain);
};

std::vector<int64_t> tokens(const ChunkDatabase& database, int64_t chunk) {
  std::vector<int64_t> out(static_cast<size_t>(database.chunk_length()));
  database.read_tokens(chunk, out);
  return out;
}

TEST_F(ChunkDatabaseTest, ReadsChunks) {
  const ChunkDatabase database = open(4);
  EXPECT_EQ(database.num_chunks(), 4);
  EXPECT_THAT(tokens(database, 0), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(tokens(database, 1), ElementsAre(5, 6, kChunkDatabaseEod, kChunkDatabaseEod));
  EXPECT_THAT(tokens(database, 2), ElementsAre(7, 8, 9, 10));
  EXPECT_EQ(database.document_of(2), (ChunkDatabase::Document{0, 1}));
  EXPECT_EQ(database.document_of(3), (ChunkDatabase::Document{1, 0}));
  EXPECT_EQ(database.chunk(1).bert_length, 2);
}

TEST_F(ChunkDatabaseTest, NumbersCountModuloTheChunks) {
  const ChunkDatabase database = open(4);
  const std::vector<int64_t> last = {101, 102, 103, kChunkDatabaseEod};
  EXPECT_EQ(tokens(database, 3), last);
  EXPECT_EQ(tokens(database, -1), last);                // no neighbour
  EXPECT_EQ(tokens(database, 4), tokens(database, 0));  // what follows the last chunk
  EXPECT_EQ(tokens(database, -5), last);
}

TEST_F(ChunkDatabaseTest, RefusesRowsThatDoNotFit) {
  const ChunkDatabase database = open(3);
  EXPECT_THAT(message_of([&] { tokens(database, 0); }),
              HasSubstr("tokens [0, 4) of document 0 of dataset 0, which do not exist or are more "
                        "than --retro-gpt-chunk-length 3"));
}

TEST_F(ChunkDatabaseTest, RefusesAnUnfinishedDatabase) {
  Hdf5Writer writer(file_);
  writer.add<uint32_t>("chunks", std::vector<uint32_t>(10), {2, 5});
  writer.add<uint64_t>("n_written", std::vector<uint64_t>{1}, {1});
  writer.commit();
  EXPECT_THAT(message_of([&] { open(4); }), HasSubstr("is not complete"));
}

}  // namespace
}  // namespace megatron
