#include "megatron/data/prefix_lm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace megatron {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr int64_t kEod = 0;

// Rows of tokens that all count in the loss.
GptBatch batch_of(const std::vector<int64_t>& tokens, int64_t rows, int64_t first_sample) {
  const auto s = static_cast<int64_t>(tokens.size()) / rows;
  return {.micro_batch_size = rows,
          .seq_length = s,
          .tokens = tokens,
          .labels = tokens,
          .loss_mask = std::vector<float>(tokens.size(), 1.0F),
          .position_ids = {},
          .document_starts = {},
          .first_sample = first_sample};
}

GptBatch with_prefixes(GptBatch batch, const PrefixOptions& options, Split split = Split::kTrain) {
  add_prefixes(batch, split, options);
  return batch;
}

const std::vector<int64_t> kRow = {5, 6, 7, 8, 9};

TEST(PrefixLmTest, EveryLengthIsDrawnAndEveryTokenKnowsTheEnd) {
  std::vector<int64_t> drawn(kRow.size() + 1);
  for (int64_t sample = 0; sample < 1000; ++sample) {
    const GptBatch batch = with_prefixes(batch_of(kRow, 1, sample), {.eod = kEod, .seed = 1});
    const int64_t length = batch.prefix_ends[0];
    ASSERT_TRUE(length >= 1 && length <= 5) << length;
    ++drawn[static_cast<size_t>(length)];
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(batch.prefix_ends[static_cast<size_t>(i)], i < length ? length : 0);
    }
    EXPECT_THAT(batch.loss_mask, Each(1.0F));
    EXPECT_EQ(batch.loss_divisor, 5);
  }
  for (size_t length = 1; length <= kRow.size(); ++length) {
    EXPECT_GT(drawn[length], 140);
    EXPECT_LT(drawn[length], 260);
  }
}

TEST(PrefixLmTest, DependsOnTheSampleAlone) {
  const PrefixOptions options{.eod = kEod, .seed = 7};
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < 4; ++i) rows.insert(rows.end(), 40, 3);
  const GptBatch all = with_prefixes(batch_of(rows, 4, 12), options);
  const auto end_of = [&](int64_t sample, Split split, uint64_t seed) {
    const GptBatch one = with_prefixes(batch_of(std::vector<int64_t>(40, 3), 1, sample),
                                       {.eod = kEod, .seed = seed}, split);
    return one.prefix_ends[0];
  };
  std::set<std::vector<int32_t>> different;
  for (int64_t row = 0; row < 4; ++row) {
    EXPECT_EQ(all.prefix_ends[static_cast<size_t>(row * 40)], end_of(12 + row, Split::kTrain, 7));
  }
  for (const Split split : kSplits) {
    for (const uint64_t seed : {7u, 8u}) {
      std::vector<int32_t> ends;
      for (int64_t sample = 0; sample < 8; ++sample) ends.push_back(end_of(sample, split, seed));
      different.insert(ends);
    }
  }
  EXPECT_EQ(different.size(), 6u);
}

// Documents of 3, 0 and 4 tokens, and the beginning of one; an eod belongs to no prefix.
TEST(PrefixLmTest, DocumentsHaveTheirOwn) {
  const std::vector<int64_t> tokens = {5, 6, 7, kEod, kEod, 1, 2, 3, 4, kEod, 9, 9};
  std::set<int64_t> first;
  std::set<int64_t> third;
  std::set<int64_t> last;
  for (int64_t sample = 0; sample < 200; ++sample) {
    const GptBatch batch =
        with_prefixes(batch_of(tokens, 1, sample), {.eod = kEod, .per_document = true, .seed = 1});
    const std::vector<int32_t>& ends = batch.prefix_ends;
    first.insert(ends[0]);
    third.insert(ends[5]);
    last.insert(ends[10]);
    for (const size_t eod : {3u, 4u, 9u}) EXPECT_EQ(ends[eod], 0);
    for (int32_t i = 5; i < 9; ++i) {
      EXPECT_EQ(ends[static_cast<size_t>(i)], i < ends[5] ? ends[5] : 0);
    }
  }
  EXPECT_THAT(first, ElementsAre(1, 2, 3));
  EXPECT_THAT(third, ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(last, ElementsAre(11, 12));
}

// The last token of a prefix predicts the first target.
TEST(PrefixLmTest, OnlyTargetsCountAndEarlyOnesWeighMore) {
  for (int64_t sample = 0; sample < 20; ++sample) {
    PrefixOptions options{.eod = kEod, .loss_on_targets_only = true, .seed = 1};
    const GptBatch targets = with_prefixes(batch_of(kRow, 1, sample), options);
    options.reweight_loss = true;
    const GptBatch weighted = with_prefixes(batch_of(kRow, 1, sample), options);
    const int32_t end = targets.prefix_ends[0];
    for (int32_t i = 0; i < 5; ++i) {
      const float counts = i < end - 1 ? 0.0F : 1.0F;
      EXPECT_EQ(targets.loss_mask[static_cast<size_t>(i)], counts);
      EXPECT_FLOAT_EQ(weighted.loss_mask[static_cast<size_t>(i)],
                      counts * 2 * static_cast<float>(5 - i) / 6);
    }
    EXPECT_EQ(targets.loss_divisor, 3);  // (5 + 1) / 2
    // The sums of the last 1, ..., 5 weights, in sixths: 2, 6, 12, 20, 30.
    EXPECT_FLOAT_EQ(weighted.loss_divisor, 70.0F / 30);
    options.loss_on_targets_only = false;
    EXPECT_EQ(with_prefixes(batch_of(kRow, 1, sample), options).loss_divisor, 5);
  }
}

// eod tokens that do not count stay out of the loss.
TEST(PrefixLmTest, KeepsWeightsOfZero) {
  GptBatch batch = batch_of(kRow, 1, 0);
  batch.loss_mask[4] = 0;
  EXPECT_EQ(with_prefixes(batch, {.reweight_loss = true}).loss_mask[4], 0);
}

}  // namespace
}  // namespace megatron
