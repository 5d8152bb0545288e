#include "megatron/data/text_blocks.h"

#include <gmock/gmock.h>

#include <numeric>

#include "megatron/core/error.h"
#include "megatron/data/numpy_random.h"

namespace megatron {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

// Texts of these lengths, whose ids count up.
TokenizedTexts counting_texts(const std::vector<int64_t>& lengths) {
  TokenizedTexts texts;
  for (const int64_t length : lengths) {
    texts.ends.push_back((texts.ends.empty() ? 0 : texts.ends.back()) + length);
  }
  texts.ids.resize(static_cast<size_t>(texts.ends.back()));
  std::iota(texts.ids.begin(), texts.ids.end(), 0);
  return texts;
}

std::shared_ptr<const TextBlocks> counting_blocks(int64_t count) {
  return std::make_shared<TextBlocks>(text_blocks(counting_texts({2 * count}), 0, 1, 2));
}

// The number of the block that is sample `sample`.
int64_t block_in(const EpochDataset& data, int64_t sample) {
  std::vector<int64_t> out(static_cast<size_t>(data.sample_size()));
  data.read(sample, out);
  EXPECT_EQ(out[1], out[0] + 1);
  EXPECT_EQ(out[2], 99);
  return out[0] / 2;
}

std::vector<int64_t> blocks_in(const EpochDataset& data, int64_t first, int64_t count) {
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < count; ++i) blocks.push_back(block_in(data, first + i));
  return blocks;
}

TEST(TextBlocksTest, JoinTextsAndDropTheRest) {
  const TokenizedTexts texts = counting_texts({3, 0, 4, 3});
  EXPECT_THAT(text_blocks(texts, 0, 4, 4).ids, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(text_blocks(texts, 2, 4, 3).ids, ElementsAre(3, 4, 5, 6, 7, 8));
  EXPECT_EQ(text_blocks(texts, 0, 4, 11).num_blocks(), 0);
  EXPECT_EQ(text_blocks(texts, 2, 2, 1).num_blocks(), 0);
}

TEST(TextBlocksTest, EveryGroupOfTextsLosesItsRest) {
  const TokenizedTexts texts = counting_texts(std::vector<int64_t>(1003, 3));
  const TextBlocks blocks = text_blocks(texts, 1, 1003, 7);
  EXPECT_EQ(blocks.num_blocks(), 3000 / 7 + 6 / 7);
  EXPECT_EQ(blocks.ids.front(), 3);
}

TEST(EpochDatasetTest, EveryEpochHasItsOrder) {
  const EpochDataset data(counting_blocks(10),
                          {.num_samples = 20, .batch_size = 5, .seed = 42, .last_id = 99});
  EXPECT_EQ(data.epoch_samples(), 10);
  EXPECT_EQ(blocks_in(data, 0, 10), torch_randperm(10, 42));
  EXPECT_EQ(blocks_in(data, 10, 10), torch_randperm(10, 43));
  EXPECT_EQ(block_in(data, 3), torch_randperm(10, 42)[3]);
  EXPECT_THROW(block_in(data, 20), Error);
}

TEST(EpochDatasetTest, FirstBlocksOfAnEpochFillItsLastBatch) {
  const EpochDataset data(counting_blocks(5),
                          {.num_samples = 16, .batch_size = 4, .seed = 1, .last_id = 99});
  EXPECT_EQ(data.epoch_samples(), 8);
  const std::vector<int64_t> epoch = blocks_in(data, 8, 8);
  EXPECT_THAT(std::vector(epoch.begin(), epoch.begin() + 5), UnorderedElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(std::vector(epoch.begin() + 5, epoch.end()),
            std::vector(epoch.begin(), epoch.begin() + 3));
  EXPECT_FALSE(data.is_repeated(12));
  EXPECT_TRUE(data.is_repeated(13));
}

TEST(EpochDatasetTest, FewBlocksFillABatchSeveralTimes) {
  const EpochDataset data(counting_blocks(2),
                          {.num_samples = 5, .batch_size = 5, .is_shuffled = false, .last_id = 99});
  EXPECT_THAT(blocks_in(data, 0, 5), ElementsAre(0, 1, 0, 1, 0));
}

}  // namespace
}  // namespace megatron
