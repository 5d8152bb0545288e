#include "megatron/data/gpt_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "megatron/data/numpy_random.h"
#include "tests/data/write_dataset.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

GptIndex index_of(const IndexedDataset& data, int64_t num_samples, int64_t seq_length) {
  const IndexRange all{0, data.num_sequences()};
  return build_gpt_index(data, all, plan_epochs(count_tokens(data, all), num_samples, seq_length),
                         seq_length, 1234);
}

// The ten sequences of 50 tokens whose index the reference built with 4 tokens a sample.
class GptIndexTest : public testing::Test {
 protected:
  GptIndexTest() { write_counting_dataset(prefix_, {5, 3, 8, 2, 7, 4, 6, 1, 9, 5}); }

  TemporaryDirectory directory_;
  std::filesystem::path prefix_ = directory_.path() / "ten";
};

TEST_F(GptIndexTest, OneEpoch) {
  const GptIndex index = index_of(IndexedDataset(prefix_), 12, 4);
  EXPECT_THAT(index.document_index.values(), ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
  EXPECT_THAT(index.sample_index.values(), ElementsAre(0, 0, 1, 3, 1, 7, 2, 3, 3, 2, 4, 3, 5, 2, 5,
                                                       6, 6, 1, 6, 5, 7, 2, 8, 2, 9, 0));
  EXPECT_THAT(index.shuffle_index.values(), ElementsAre(3, 11, 2, 1, 7, 5, 4, 0, 8, 6, 10, 9));
}

TEST_F(GptIndexTest, LastEpochApart) {
  const GptIndex index = index_of(IndexedDataset(prefix_), 20, 4);
  EXPECT_EQ(index_bytes({0, 10}, plan_epochs(50, 20, 4)),
            index.document_index.values().size_bytes() + index.sample_index.values().size_bytes() +
                index.shuffle_index.values().size_bytes());
  EXPECT_THAT(index.document_index.values(),
              ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3, 7, 3, 5, 1, 4, 8, 0, 2, 6, 9));
  EXPECT_THAT(index.sample_index.values().subspan(26),
              ElementsAre(11, 1, 12, 3, 14, 0, 14, 4, 15, 1, 15, 5, 16, 0, 16, 4, 17, 3, 17, 7, 18,
                          3, 19, 1));
  EXPECT_THAT(index.shuffle_index.values(),
              ElementsAre(8, 1, 9, 4, 3, 7, 11, 10, 5, 0, 2, 6, 22, 17, 20, 18, 19, 13, 16, 21, 14,
                          15, 12, 23));
}

TEST_F(GptIndexTest, TwoEpochsTogether) {
  const GptIndex index = index_of(IndexedDataset(prefix_), 24, 4);
  EXPECT_THAT(index.document_index.values(),
              ElementsAre(3, 3, 2, 6, 4, 5, 4, 0, 8, 8, 7, 1, 0, 9, 7, 1, 9, 2, 6, 5));
  EXPECT_THAT(
      index.sample_index.values(),
      ElementsAre(0, 0, 2, 0, 2, 4, 3, 0, 3, 4, 4, 2, 4, 6, 5, 3, 6, 3, 7, 0, 7, 4, 8, 3, 8, 7, 9,
                  2, 9, 6, 11, 0, 12, 1, 13, 0, 13, 4, 15, 2, 16, 3, 17, 2, 17, 6, 18, 2, 19, 0));
  EXPECT_THAT(index.shuffle_index.values(), ElementsAre(10, 19, 8, 17, 23, 1, 4, 20, 22, 21, 13, 14,
                                                        9, 0, 11, 7, 3, 6, 2, 5, 12, 16, 18, 15));
}

TEST_F(GptIndexTest, ThreeEpochsLastApart) {
  const GptIndex index = index_of(IndexedDataset(prefix_), 30, 4);
  EXPECT_EQ(index.num_samples(), 37);
  EXPECT_THAT(index.document_index.values().last(10), ElementsAre(8, 1, 7, 6, 9, 5, 4, 3, 0, 2));
  EXPECT_THAT(index.shuffle_index.values(),
              ElementsAre(6, 20, 21, 5, 8, 18, 4, 23, 14, 13, 10, 15, 19, 1, 12, 17, 2, 3, 16, 22,
                          9, 0, 11, 7, 26, 27, 34, 30, 35, 32, 33, 36, 25, 29, 24, 28, 31));
}

// The definition, token by token, on enough sequences that several threads build the index.
TEST_F(GptIndexTest, PartsOfAnIndexFitTogether) {
  constexpr int64_t kSeqLength = 7;
  std::mt19937 random(5);
  std::vector<int32_t> lengths(200'000);
  for (int32_t& length : lengths) length = static_cast<int32_t>(random() % 4);  // some are empty
  IndexedDatasetBuilder builder(directory_.path() / "many", {.dtype = TokenDtype::kUint8});
  const std::vector<int32_t> tokens(4, 1);
  for (const int32_t& length : lengths) {
    builder.add_document(std::span(tokens).first(static_cast<size_t>(length)),
                         std::span(&length, 1));
  }
  builder.finalize();
  const IndexedDataset data(directory_.path() / "many");
  const GptIndex index = index_of(data, 50'000, kSeqLength);

  std::vector<int32_t> want = {0, 0};
  int32_t position = 0;
  int32_t offset = 0;
  for (int64_t sample = 0; sample < index.num_samples(); ++sample) {
    int64_t rest = kSeqLength + 1;
    while (true) {
      const auto length =
          static_cast<int32_t>(data.length(index.document_index[position])) - offset;
      rest -= length;
      if (rest <= 0) {
        offset += static_cast<int32_t>(rest) + length - 1;
        break;
      }
      ++position;
      offset = 0;
    }
    want.push_back(position);
    want.push_back(offset);
  }
  EXPECT_TRUE(std::ranges::equal(index.sample_index.values(), want));
}

TEST(EpochPlanTest, CountsEpochs) {
  EXPECT_EQ(plan_epochs(50, 12, 4).num_epochs, 1);
  EXPECT_EQ(plan_epochs(49, 12, 4).num_epochs, 1);
  EXPECT_EQ(plan_epochs(48, 12, 4).num_epochs, 2);
  EXPECT_EQ(plan_epochs(50, std::nullopt, 4).num_samples, 12);
  EXPECT_EQ(plan_epochs(50, 0, 4).num_epochs, 1);
  EXPECT_EQ(plan_epochs(1, 3, 4).num_epochs, 13);  // less than a sample in an epoch
  EXPECT_TRUE(plan_epochs(50, 20, 4).separate_last_epoch);
  EXPECT_FALSE(plan_epochs(50, 24, 4).separate_last_epoch);
}

TEST(EpochPlanTest, HoldsTrillionsOfTokens) {
  const EpochPlan plan = plan_epochs(15'000'000'000'000, 10'000'000'000, 8192);
  EXPECT_EQ(plan.num_epochs, 6);
  EXPECT_EQ(plan.num_samples, (6 * int64_t{15'000'000'000'000} - 1) / 8192);
}

}  // namespace
}  // namespace megatron
