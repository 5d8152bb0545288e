#include "annex/retro/data/retro_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "annex/retro/data/work_directory.h"
#include "megatron/core/error.h"
#include "tests/data/write_dataset.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kRetroDatasetEod = 99;

// Samples 100 s + 0, 100 s + 1, ...: five tokens and one more, so chunks of 2, 2 (the last token is
// a label).
class Texts final : public SampleDataset {
 public:
  explicit Texts(int64_t num_samples) : num_samples_(num_samples) {}
  int64_t num_samples() const override { return num_samples_; }
  int64_t sample_size() const override { return 5; }
  void read(int64_t sample, std::span<int64_t> out) const override {
    std::iota(out.begin(), out.end(), 100 * (sample + 1));
  }

 private:
  int64_t num_samples_;
};

// Three chunks of two tokens: 1 2, 3 4, 5 and the end of its document.
class RetroDatasetTest : public testing::Test {
 protected:
  RetroDatasetTest() {
    write_counting_dataset(directory_.path() / "a", {5});
    const auto file = merged_chunks_file(directory_.path(), ChunkPart::kTrain);
    std::filesystem::create_directories(file.parent_path());
    Hdf5Writer writer(file);
    const std::vector<uint32_t> rows = {0, 0, 0, 2, 1, 0, 0, 2, 4, 1, 0, 0, 4, 5, 1};
    writer.add<uint32_t>("chunks", rows, {3, 5});
    writer.add<uint64_t>("n_written", std::vector<uint64_t>{3}, {1});
    writer.add<uint64_t>("doc_offsets", std::vector<uint64_t>{0, 0, 3}, {1, 3});
    writer.commit();
    write_chunk_sources(directory_.path(), {{.ratio = 1,
                                             .prefix = (directory_.path() / "a").string(),
                                             .name = "a",
                                             .blocks = directory_.path() / "blocks"}});
    chunks_ = std::make_shared<const ChunkDatabase>(directory_.path(), ChunkPart::kTrain, 2,
                                                    static_cast<int32_t>(kRetroDatasetEod));
    // Of two samples' two chunks.
    const auto neighbors = directory_.path() / "query";
    std::filesystem::create_directories(neighbors);
    Hdf5Writer table(blocks_of(4, 4, neighbors)[0].path);
    table.add<int64_t>("neighbors", std::vector<int64_t>{0, 1, 1, -1, 2, 0, -1, -1}, {4, 2});
    table.commit();
    neighbors_ = std::make_shared<const NeighborTable>(neighbors);
  }

  RetroDataset open(const RetroDataset::Options& options, int64_t num_samples = 2) const {
    return {std::make_shared<const Texts>(num_samples), chunks_, neighbors_, options};
  }
  static std::vector<int64_t> read(const RetroDataset& dataset, int64_t sample) {
    std::vector<int64_t> out(static_cast<size_t>(dataset.sample_size()));
    dataset.read(sample, out);
    return out;
  }

  TemporaryDirectory directory_;
  std::shared_ptr<const ChunkDatabase> chunks_;
  std::shared_ptr<const NeighborTable> neighbors_;
};

TEST_F(RetroDatasetTest, NeighboursFollowTheText) {
  const RetroDataset dataset =
      open({.num_neighbors = 2, .num_retrieved_chunks = 2, .eod = kRetroDatasetEod});
  EXPECT_EQ(dataset.sample_size(), 5 + 2 * 2 * 4);
  EXPECT_THAT(read(dataset, 0),
              ElementsAre(100, 101, 102, 103, 104,                      //
                          1, 2, 3, 4,                                   // 0 and 1
                          3, 4, 5, kRetroDatasetEod,                    // 1 and 2
                          3, 4, 5, kRetroDatasetEod,                    //
                          5, kRetroDatasetEod, 1, 2));                  // none: the last, the first
  EXPECT_THAT(read(dataset, 1), ElementsAre(200, 201, 202, 203, 204,    //
                                            5, kRetroDatasetEod, 1, 2,  // 2: the first follows
                                            1, 2, 3, 4,                 //
                                            5, kRetroDatasetEod, 1, 2, 5, kRetroDatasetEod, 1, 2));
}

TEST_F(RetroDatasetTest, FewerNeighboursThanSavedAndNoneAreEnds) {
  const RetroDataset one =
      open({.num_neighbors = 1, .num_retrieved_chunks = 1, .eod = kRetroDatasetEod});
  EXPECT_THAT(read(one, 1),
              ElementsAre(200, 201, 202, 203, 204, 5, kRetroDatasetEod, 5, kRetroDatasetEod));
  const RetroDataset ends = open({.num_neighbors = 1,
                                  .num_retrieved_chunks = 1,
                                  .missing = MissingNeighbor::kEndOfDocument,
                                  .eod = kRetroDatasetEod});
  EXPECT_THAT(read(ends, 1), ElementsAre(200, 201, 202, 203, 204, 5, kRetroDatasetEod,
                                         kRetroDatasetEod, kRetroDatasetEod));
}

TEST_F(RetroDatasetTest, NeighboursBelongToTheSamples) {
  EXPECT_THAT(message_of([&] { open({.num_neighbors = 3}); }),
              HasSubstr("--retro-num-neighbors 3 must not exceed the 2 that"));
  EXPECT_THAT(message_of([&] { open({}, 3); }), HasSubstr("4 chunks, but the samples have 6"));
  const RetroDataset more = open({.num_neighbors = 1, .verify_neighbor_count = false}, 3);
  const std::vector<int64_t> first = read(more, 0);
  const std::vector<int64_t> third = read(more, 2);  // has the neighbours of the first
  EXPECT_EQ(std::vector(first.begin() + 5, first.end()),
            std::vector(third.begin() + 5, third.end()));
  EXPECT_EQ(third[0], 300);
}

}  // namespace
}  // namespace megatron
