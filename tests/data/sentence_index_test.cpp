#include "megatron/data/sentence_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "megatron/core/error.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_directory.h"

namespace megatron {
namespace {

using testing::HasSubstr;

// Five documents of 2, 1, 4, 0 and 3 sentences.
class SentenceIndexTest : public testing::Test {
 protected:
  SentenceIndexTest() {
    IndexedDatasetBuilder builder(prefix_, {.dtype = TokenDtype::kInt32});
    for (const std::vector<int32_t>& lengths :
         std::vector<std::vector<int32_t>>{{3, 4}, {3}, {4, 1, 5, 2}, {}, {4, 3, 3}}) {
      int32_t tokens = 0;
      for (const int32_t length : lengths) tokens += length;
      builder.add_document(std::vector<int32_t>(static_cast<size_t>(tokens), 7), lengths);
    }
    builder.finalize();
  }

  std::vector<std::vector<int64_t>> rows(const SentenceIndexOptions& options) const {
    const IndexedDataset data(prefix_);
    const SentenceIndex index = build_sentence_index(data, {0, 5}, options);
    std::vector<std::vector<int64_t>> all;
    for (int64_t i = 0; i < index.num_samples(); ++i) {
      const SentenceIndex::Row row = index.row(i);
      all.push_back({row.begin, row.end, row.target});
    }
    return all;
  }

  TemporaryDirectory directory_;
  std::filesystem::path prefix_ = directory_.path() / "sentences";
};

// The expected rows were made by Megatron-LM core_r0.5.0.
TEST_F(SentenceIndexTest, EqualsMegatronsPairsWithShortTargets) {
  EXPECT_EQ(rows({.num_samples = 12,
                  .max_length = 13,
                  .short_seq_prob = 0.5,
                  .min_sentences = 2,
                  .seed = 1234}),
            (std::vector<std::vector<int64_t>>{{7, 10, 13},
                                               {0, 2, 8},
                                               {3, 7, 8},
                                               {7, 10, 10},
                                               {7, 10, 2},
                                               {3, 7, 8},
                                               {3, 7, 13},
                                               {7, 10, 2},
                                               {0, 2, 13},
                                               {3, 7, 13},
                                               {0, 2, 12},
                                               {0, 2, 2}}));
}

TEST_F(SentenceIndexTest, EqualsMegatronsSingleSentences) {
  const auto all = rows({.num_samples = 12, .max_length = 13, .min_sentences = 1, .seed = 1234});
  std::vector<int64_t> starts;
  for (const auto& row : all) {
    starts.push_back(row[0]);
    EXPECT_EQ(row[2], 13);
  }
  EXPECT_EQ(starts, (std::vector<int64_t>{2, 2, 3, 3, 0, 2, 7, 7, 0, 0, 3, 7}));
}

// The order of many rows is that of a plain Fisher-Yates shuffle.
TEST_F(SentenceIndexTest, ShufflesManyRows) {
  const auto all = rows({.num_samples = 200, .max_length = 13, .min_sentences = 1, .seed = 5});
  std::vector<int64_t> starts;
  for (int i = 0; i < 50; ++i) {
    for (const int64_t start : {0, 2, 3, 7}) starts.push_back(start);
  }
  std::mt19937_64 random(6);
  for (size_t i = starts.size(); i-- > 1;) std::swap(starts[i], starts[random() % (i + 1)]);
  ASSERT_EQ(all.size(), starts.size());
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i][0], starts[i]) << i;
}

TEST_F(SentenceIndexTest, WithoutACountReadsOneEpoch) {
  EXPECT_EQ(rows({.max_length = 13, .min_sentences = 1, .seed = 1}).size(), 4u);
}

TEST_F(SentenceIndexTest, RefusesDocumentsWithoutEnoughSentences) {
  const IndexedDataset data(prefix_);
  EXPECT_THAT(message_of<ConfigError>([&] {
                build_sentence_index(
                    data, {1, 2},
                    {.num_samples = 1, .max_length = 9, .min_sentences = 2, .seed = 1});
              }),
              HasSubstr("--split-sentences"));
}

}  // namespace
}  // namespace megatron
